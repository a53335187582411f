//! Names in the form that rules compare: lower case, other alphabets in Punycode (RFC 3492).

/// A name with each label in lower case, and in Punycode if it is not ASCII.
pub(super) fn ascii_name(name: &str) -> String {
    let lower = name.to_lowercase();
    if lower.is_ascii() {
        return lower;
    }
    let labels = lower
        .split('.')
        .map(|label| if label.is_ascii() { label.to_owned() } else { format!("xn--{}", punycode(label)) });
    labels.collect::<Vec<_>>().join(".")
}

/// RFC 3492 section 6.3. A label of more than a thousand characters is no name, and stays empty.
fn punycode(label: &str) -> String {
    const MAX: usize = 1000;
    let input: Vec<u32> = label.chars().map(u32::from).collect();
    if input.len() > MAX {
        return String::new();
    }
    let mut output: String = label.chars().filter(char::is_ascii).collect();
    let basic = u32::try_from(output.len()).unwrap_or(u32::MAX);
    if basic > 0 {
        output.push('-');
    }
    let (mut n, mut delta, mut bias, mut done) = (128_u32, 0_u32, 72_u32, basic);
    while (done as usize) < input.len() {
        let next = input.iter().copied().filter(|code| *code >= n).min().unwrap_or(u32::MAX);
        delta = delta.saturating_add((next - n).saturating_mul(done + 1));
        n = next;
        for code in &input {
            if *code < n {
                delta = delta.saturating_add(1);
            }
            if *code == n {
                push_number(&mut output, delta, bias);
                bias = adapt(delta, done + 1, done == basic);
                delta = 0;
                done += 1;
            }
        }
        delta = delta.saturating_add(1);
        n = n.saturating_add(1);
    }
    output
}

/// A number in digits of changing base.
fn push_number(output: &mut String, number: u32, bias: u32) {
    let mut rest = number;
    let mut base = 36;
    loop {
        let threshold = base.max(bias + 1).min(bias + 26) - bias;
        if rest < threshold {
            break;
        }
        output.push(digit(threshold + (rest - threshold) % (36 - threshold)));
        rest = (rest - threshold) / (36 - threshold);
        base += 36;
    }
    output.push(digit(rest));
}

fn digit(number: u32) -> char {
    char::from_digit(if number < 26 { number + 10 } else { number - 26 }, 36).unwrap_or('a')
}

fn adapt(delta: u32, points: u32, is_first: bool) -> u32 {
    let mut delta = if is_first { delta / 700 } else { delta / 2 };
    delta += delta / points;
    let mut k = 0;
    while delta > 455 {
        delta /= 35;
        k += 36;
    }
    k + 36 * delta / (delta + 38)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From RFC 3492 section 7.1, and names in use.
    #[test]
    fn names_of_other_alphabets() {
        for (name, want) in [
            ("UPPER.Exact.Test", "upper.exact.test"),
            ("例え.test", "xn--r8jz45g.test"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("他们为什么不说中文", "xn--ihqwcrb4cv8a8dqg056pqjye"),
            ("почемужеонинеговорятпорусски", "xn--b1abfaaepdrnnbgefbadotcwatmq2g4l"),
            ("", ""),
        ] {
            assert_eq!(ascii_name(name), want);
        }
        assert!(ascii_name(&"é".repeat(5000)).len() < 10);
    }
}
