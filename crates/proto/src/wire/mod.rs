//! The parts that all protocols share: targets of traffic ([`Target`]), errors in bytes ([`WireError`]), the
//! random source they draw from ([`Rng`]), messages to and from local clients ([`Credentials`], [`ConnectFailure`]) and the
//! contract of a stream protocol ([`Layer`]).

mod address;
mod clock;
mod credentials;
mod date;
mod error;
mod failure;
mod layer;
mod records;
mod seen;
mod target;

pub use address::{Address, MAX_ADDRESS_LEN, address_len, emit_address, fuzz_address, parse_address};
pub use clock::WallClock;
pub use credentials::Credentials;
pub use date::{days, http_date, plain_date};
pub use error::WireError;
pub use failure::ConnectFailure;
pub use layer::{EndOfStream, Layer, Opened, Plan, Room};
pub(crate) use records::{RECORD_HEAD, Records, records_plan, seal_records};
pub use seen::SeenProofs;
pub use target::{Host, Target, TargetError};
#[doc(hidden)]
pub use target::{fuzz_host, fuzz_target};

/// A source of random bytes, lent by the caller so that recorded exchanges can be reproduced.
///
/// Outside tests it must be cryptographically secure: salts and paddings come from it.
pub trait Rng {
    /// Fills `out` completely.
    fn fill(&mut self, out: &mut [u8]);

    /// A number in `0..bound`, without bias. `bound` must not be 0.
    fn below(&mut self, bound: u32) -> u32 {
        let zone = u32::MAX - u32::MAX % bound;
        loop {
            let mut bytes = [0; 4];
            self.fill(&mut bytes);
            let value = u32::from_le_bytes(bytes);
            if value < zone {
                return value % bound;
            }
        }
    }
}

impl<R: Rng + ?Sized> Rng for &mut R {
    fn fill(&mut self, out: &mut [u8]) {
        (**self).fill(out);
    }
}
