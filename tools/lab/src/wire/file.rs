//! Capture files: pcap and pcapng in, pcapng out. Memory is bounded by one frame.
//!
//! ```text
//! pcap:   magic 4 | version 4 | zone 4 | accuracy 4 | snap length 4 | link type 4 | records
//!         record: seconds 4 | fraction 4 | captured 4 | original 4 | frame        byte order and unit by the magic
//! pcapng: blocks: type 4 | length 4 | body | length 4, padded to 4                byte order by the section header
//! ```
//! Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::flows::Flows;
use crate::frame::{Link, parse};

/// Largest block or frame that is read.
const MOST: usize = 1 << 20;
/// Most interfaces of one section.
const MOST_INTERFACES: usize = 4096;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const SIMPLE: u32 = 3;
const ENHANCED: u32 = 6;
const SECTION_MAGIC: u32 = 0x1a2b_3c4d;
/// Option of an interface: unit of its times.
const RESOLUTION: u16 = 9;

/// One captured frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'a> {
    /// Since 1970.
    pub time: Duration,
    /// The type of its first header; `None` if it is unknown here.
    pub link: Option<Link>,
    /// Its bytes, as far as they were captured.
    pub bytes: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn short(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Self::Little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    }

    fn long(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Self::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }
}

#[derive(Debug, Clone, Copy)]
struct Interface {
    link: Option<Link>,
    /// Parts of a second in which times count.
    per_second: u64,
}

#[derive(Debug)]
enum Format {
    Pcap { order: Order, per_second: u64, link: Option<Link> },
    Pcapng { order: Order, interfaces: Vec<Interface> },
}

/// Reads a capture frame by frame.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    format: Format,
    block: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the head of a capture.
    ///
    /// # Errors
    /// If it is neither pcap nor pcapng.
    pub fn new(mut from: R) -> Result<Self> {
        let mut magic = [0; 4];
        from.read_exact(&mut magic).context("not a capture: shorter than 4 bytes")?;
        let format = match u32::from_le_bytes(magic) {
            SECTION => Format::Pcapng { order: section(&mut from)?, interfaces: Vec::new() },
            number => pcap(&mut from, number)?,
        };
        Ok(Self { from, format, block: Vec::new() })
    }

    /// The next frame; `None` at the end. A file that was cut in the middle of a frame ends before it.
    ///
    /// # Errors
    /// If what is there is not a frame.
    pub fn next_frame(&mut self) -> Result<Option<Captured<'_>>> {
        match &mut self.format {
            Format::Pcap { order, per_second, link } => {
                let (order, per_second, link) = (*order, *per_second, *link);
                let mut head = [0; 16];
                if !fill(&mut self.from, &mut head)? {
                    return Ok(None);
                }
                let word = |at| order.long(&head, at).unwrap_or_default();
                let len = word(8) as usize;
                ensure!(len <= MOST, "a frame of {len} bytes: more than {MOST}");
                self.block.resize(len, 0);
                if !fill(&mut self.from, &mut self.block)? {
                    return Ok(None);
                }
                let fraction = u64::from(word(4)).min(per_second - 1) * (1_000_000_000 / per_second);
                let time = Duration::from_secs(word(0).into()) + Duration::from_nanos(fraction);
                Ok(Some(Captured { time, link, bytes: &self.block }))
            }
            Format::Pcapng { .. } => self.next_block_frame(),
        }
    }

    fn next_block_frame(&mut self) -> Result<Option<Captured<'_>>> {
        let Format::Pcapng { order, interfaces } = &mut self.format else { bail!("not pcapng") };
        let kind = loop {
            let mut head = [0; 4];
            if !fill(&mut self.from, &mut head)? {
                return Ok(None);
            }
            if u32::from_le_bytes(head) == SECTION {
                *order = section(&mut self.from)?;
                interfaces.clear();
                continue;
            }
            let kind = order.long(&head, 0).unwrap_or_default();
            if !fill(&mut self.from, &mut head)? {
                return Ok(None);
            }
            let len = order.long(&head, 0).unwrap_or_default() as usize;
            ensure!((12..=MOST).contains(&len) && len.is_multiple_of(4), "a block of {len} bytes");
            self.block.resize(len - 8, 0);
            if !fill(&mut self.from, &mut self.block)? {
                return Ok(None);
            }
            match kind {
                INTERFACE => {
                    ensure!(interfaces.len() < MOST_INTERFACES, "more than {MOST_INTERFACES} interfaces");
                    interfaces.push(interface(*order, &self.block).context("an interface is cut short")?);
                }
                ENHANCED | SIMPLE => break kind,
                _ => {}
            }
        };
        let body = &self.block[..self.block.len() - 4];
        let frame = if kind == ENHANCED {
            enhanced(*order, body, interfaces)
        } else {
            simple(*order, body, interfaces)
        };
        frame.context("a packet block is cut short or of no interface").map(Some)
    }
}

/// Fills `bytes`; `false` if the end comes first.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> Result<bool> {
    match from.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error).context("read the capture"),
    }
}

/// The rest of a pcap head, behind its magic number as little endian reads it.
fn pcap(from: &mut impl Read, number: u32) -> Result<Format> {
    let (order, per_second) = match number {
        0xa1b2_c3d4 => (Order::Little, 1_000_000),
        0xa1b2_3c4d => (Order::Little, 1_000_000_000),
        0xd4c3_b2a1 => (Order::Big, 1_000_000),
        0x4d3c_b2a1 => (Order::Big, 1_000_000_000),
        _ => bail!("neither pcap nor pcapng: begins with {number:#010x}"),
    };
    let mut rest = [0; 20];
    ensure!(fill(from, &mut rest)?, "a pcap file without a head");
    // The upper bits say something about checksums.
    let link = order.long(&rest, 16).unwrap_or_default() & 0xffff;
    Ok(Format::Pcap { order, per_second, link: u16::try_from(link).ok().and_then(Link::from_number) })
}

/// The rest of a section header, behind its type: gives the byte order.
fn section(from: &mut impl Read) -> Result<Order> {
    let mut head = [0; 8];
    ensure!(fill(from, &mut head)?, "a pcapng section without a head");
    let order =
        [Order::Little, Order::Big].into_iter().find(|order| order.long(&head, 4) == Some(SECTION_MAGIC));
    let order = order.context("a pcapng section without its magic number")?;
    let len = order.long(&head, 0).unwrap_or_default() as usize;
    ensure!((28..=MOST).contains(&len) && len.is_multiple_of(4), "a section header of {len} bytes");
    let mut rest = vec![0; len - 12];
    ensure!(fill(from, &mut rest)?, "a section header is cut short");
    Ok(order)
}

/// Link type 2 | reserved 2 | snap length 4 | options.
fn interface(order: Order, block: &[u8]) -> Option<Interface> {
    let link = Link::from_number(order.short(block, 0)?);
    let mut options = block.get(8..block.len().checked_sub(4)?)?;
    let mut per_second = 1_000_000;
    while let (Some(code), Some(len)) = (order.short(options, 0), order.short(options, 2)) {
        let len = usize::from(len);
        if code == RESOLUTION {
            let unit = *options.get(4)?;
            let power = u32::from(unit & 0x7f);
            let base: u64 = if unit & 0x80 == 0 { 10 } else { 2 };
            per_second = base.checked_pow(power).filter(|units| *units <= 1 << 32)?;
        }
        options = options.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Interface { link, per_second })
}

/// Interface 4 | time, high and low 8 | captured 4 | original 4 | frame.
fn enhanced<'a>(order: Order, body: &'a [u8], interfaces: &[Interface]) -> Option<Captured<'a>> {
    let interface = interfaces.get(order.long(body, 0)? as usize)?;
    let time = u64::from(order.long(body, 4)?) << 32 | u64::from(order.long(body, 8)?);
    let len = order.long(body, 12)? as usize;
    let nanos = u128::from(time % interface.per_second) * 1_000_000_000 / u128::from(interface.per_second);
    let time =
        Duration::from_secs(time / interface.per_second) + Duration::from_nanos(nanos.try_into().ok()?);
    Some(Captured { time, link: interface.link, bytes: body.get(20..)?.get(..len)? })
}

/// Original 4 | frame: no time, always the first interface.
fn simple<'a>(order: Order, body: &'a [u8], interfaces: &[Interface]) -> Option<Captured<'a>> {
    let len = order.long(body, 0)? as usize;
    let frame = body.get(4..)?;
    let bytes = &frame[..frame.len().min(len)];
    Some(Captured { time: Duration::ZERO, link: interfaces.first()?.link, bytes })
}

/// Writes pcapng with one Ethernet interface and times in nanoseconds.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// Writes the head.
    ///
    /// # Errors
    /// If `to` cannot be written.
    pub fn new(mut to: W) -> io::Result<Self> {
        let mut head = Vec::with_capacity(60);
        for word in [SECTION, 28, SECTION_MAGIC, 1, u32::MAX, u32::MAX, 28] {
            head.extend(word.to_le_bytes());
        }
        // Version 1.0, no section length; then an interface with the option "nanoseconds".
        for word in [INTERFACE, 32, 1, 0] {
            head.extend(word.to_le_bytes());
        }
        head.extend([9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        head.extend(32_u32.to_le_bytes());
        to.write_all(&head)?;
        Ok(Self { to })
    }

    /// Writes one frame of `original` bytes, of which `bytes` were captured.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn frame(&mut self, time: Duration, bytes: &[u8], original: usize) -> io::Result<()> {
        let clip = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let padded = bytes.len().next_multiple_of(4);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (high, low) =
            (clip((nanos >> 32) as usize), u32::try_from(nanos & 0xffff_ffff).unwrap_or_default());
        let len = clip(32 + padded);
        for word in [ENHANCED, len, 0, high, low, clip(bytes.len()), clip(original)] {
            self.to.write_all(&word.to_le_bytes())?;
        }
        self.to.write_all(bytes)?;
        self.to.write_all(&[0; 4][..padded - bytes.len()])?;
        self.to.write_all(&len.to_le_bytes())
    }

    /// Hands over what was written, flushed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Feeds a capture to everything that reads one: it ends, no frame is larger than the file, and what is counted of the
/// flows adds up to what the frames carry.
///
/// # Panics
/// If that does not hold.
pub fn fuzz_capture(data: &[u8]) {
    let Ok(mut reader) = Reader::new(data) else { return };
    let (mut flows, mut packets, mut bytes) = (Flows::default(), 0, 0);
    while let Ok(Some(captured)) = reader.next_frame() {
        assert!(captured.bytes.len() <= data.len(), "a frame of bytes that are not in the file");
        if let Some(packet) = captured.link.and_then(|link| parse(link, captured.bytes)) {
            flows.note(&packet, captured.time);
            packets += 1;
            bytes += packet.len as u64;
        }
    }
    let beyond = flows.beyond;
    let flows = flows.finish();
    let sides = || flows.iter().flat_map(|flow| [&flow.up, &flow.down]);
    assert_eq!(sides().map(|side| side.packets).sum::<u64>() + beyond, packets);
    assert!(beyond > 0 || sides().map(|side| side.bytes).sum::<u64>() == bytes);
    for side in sides() {
        let sized = side.classes.iter().sum::<u64>() + side.full + side.merged;
        assert_eq!(sized, side.data, "each packet with payload has one size");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    type Frame = (Duration, Option<Link>, Vec<u8>);

    fn frames(bytes: &[u8]) -> Result<Vec<Frame>> {
        let mut reader = Reader::new(bytes)?;
        let mut frames = Vec::new();
        while let Some(frame) = reader.next_frame()? {
            frames.push((frame.time, frame.link, frame.bytes.to_vec()));
        }
        Ok(frames)
    }

    fn written() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.frame(Duration::new(1_700_000_000, 123_456_789), b"odd", 3).unwrap();
        writer.frame(Duration::new(1_700_000_001, 1), b"four", 1500).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn pcapng_round_trip() {
        let frames = frames(&written()).unwrap();
        assert_eq!(frames.len(), 2);
        assert_eq!(
            frames[0],
            (Duration::new(1_700_000_000, 123_456_789), Some(Link::Ethernet), b"odd".to_vec())
        );
        assert_eq!(frames[1].2, b"four");
    }

    #[test]
    fn pcap_of_both_orders_and_units() {
        for (magic, little, fraction) in [
            ([0xd4, 0xc3, 0xb2, 0xa1], true, 5_000_u32),
            ([0xa1, 0xb2, 0xc3, 0xd4], false, 5_000),
            ([0x4d, 0x3c, 0xb2, 0xa1], true, 5_000_000),
            ([0xa1, 0xb2, 0x3c, 0x4d], false, 5_000_000),
        ] {
            let word = |number: u32| if little { number.to_le_bytes() } else { number.to_be_bytes() };
            let mut file = magic.to_vec();
            file.extend([0; 12]);
            file.extend(word(65_535));
            file.extend(word(101));
            for number in [7, fraction, 3, 9] {
                file.extend(word(number));
            }
            file.extend(b"abc");
            let expected = (Duration::from_millis(7005), Some(Link::Ip), b"abc".to_vec());
            assert_eq!(frames(&file).unwrap(), [expected], "{magic:x?}");
            // Cut in the middle of a frame: what is whole counts.
            assert!(frames(&file[..file.len() - 1]).unwrap().is_empty());
        }
    }

    #[test]
    fn what_is_not_a_capture_is_an_error() {
        for wrong in [&b""[..], b"GIF89a", b"\x0a\x0d\x0d\x0a12345678", &[0xd4, 0xc3, 0xb2, 0xa1, 0]] {
            assert!(Reader::new(wrong).is_err(), "{wrong:?}");
        }
        let mut huge = vec![0xd4, 0xc3, 0xb2, 0xa1];
        huge.extend([0; 28]);
        huge.extend(u32::MAX.to_le_bytes());
        huge.extend([0; 4]);
        assert!(frames(&huge).is_err());
    }

    #[test]
    fn nothing_makes_it_panic() {
        let mut random = Random::new(2);
        let good = written();
        for len in 0..good.len() {
            frames(&good[..len]).ok();
        }
        for _ in 0..50_000 {
            let mut changed = good.clone();
            for _ in 0..3 {
                let at = random.below(u32::try_from(changed.len()).unwrap()) as usize;
                changed[at] = random.next_u64().to_le_bytes()[0];
            }
            frames(&changed).ok();
        }
    }
}
