//! Memory of names with fake addresses.

#![forbid(unsafe_code)]

use adit_sys::CountingAlloc;
use adit_sys::alloc::live_bytes;

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// Bytes for one name beyond the name itself, with so many of them.
fn bytes_per_name(count: usize) -> f64 {
    let names: Vec<String> = (0..count).map(|n| format!("host-{n}.example.com")).collect();
    let text: usize = names.iter().map(String::len).sum();
    let before = live_bytes();
    let pool = adit_engine::fake_names(1 << 16, names.iter().map(String::as_str));
    let held = live_bytes() - before;
    drop(pool);
    assert_eq!(live_bytes(), before, "all of it is given back");
    let beyond = held - i64::try_from(text).unwrap_or(i64::MAX);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let each = beyond as f64 / count as f64;
    each
}

#[test]
fn a_name_takes_64_bytes_beyond_itself_at_most() {
    let mut most: f64 = 0.0;
    // Sizes at which tables have just grown are among them.
    for count in (1000..=65_536).step_by(977).chain([1024, 4096, 12_289, 24_577, 49_153, 65_536]) {
        let each = bytes_per_name(count);
        assert!(each <= 64.0, "{count} names: {each:.1} bytes each");
        most = most.max(each);
    }
    println!(
        "at most {most:.1} bytes a name beyond its text; {:.1} with 65,536 names",
        bytes_per_name(65_536)
    );
}
