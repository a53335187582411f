//! Punycode (RFC 3492): a label of a name in ASCII and in Unicode.

const BASE: u32 = 36;
const T_MIN: u32 = 1;
const T_MAX: u32 = 26;
const INITIAL_BIAS: u32 = 72;
const INITIAL_N: u32 = 128;
/// Longest label that is looked at, in characters; the way back takes quadratic time.
const MAX_LABEL: usize = 256;

/// Every label of `name` in Unicode; `None` if one that begins with `xn--` is wrong.
pub(super) fn to_unicode(name: &str) -> Option<String> {
    let labels = name.split('.').map(|label| match label.strip_prefix("xn--") {
        Some(digits) => decode(digits),
        None => Some(label.to_owned()),
    });
    labels.collect::<Option<Vec<_>>>().map(|labels| labels.join("."))
}

/// Every label of `name` in ASCII; `None` if a label cannot be written.
pub(super) fn to_ascii(name: &str) -> Option<String> {
    let labels = name.split('.').map(|label| {
        if label.is_ascii() { Some(label.to_owned()) } else { Some("xn--".to_owned() + &encode(label)?) }
    });
    labels.collect::<Option<Vec<_>>>().map(|labels| labels.join("."))
}

fn adapt(delta: u32, points: u32, is_first: bool) -> u32 {
    let mut delta = if is_first { delta / 700 } else { delta / 2 };
    delta += delta / points;
    let mut k = 0;
    while delta > (BASE - T_MIN) * T_MAX / 2 {
        delta /= BASE - T_MIN;
        k += BASE;
    }
    k + (BASE - T_MIN + 1) * delta / (delta + 38)
}

fn threshold(k: u32, bias: u32) -> u32 {
    k.saturating_sub(bias).clamp(T_MIN, T_MAX)
}

fn decode(text: &str) -> Option<String> {
    let (basic, digits) = text.rsplit_once('-').unwrap_or(("", text));
    if !basic.is_ascii() || text.len() > MAX_LABEL {
        return None;
    }
    let mut out: Vec<char> = basic.chars().collect();
    let (mut n, mut i, mut bias) = (INITIAL_N, 0_u32, INITIAL_BIAS);
    let mut digits = digits.bytes().peekable();
    while digits.peek().is_some() {
        let (old, mut weight, mut k) = (i, 1_u32, BASE);
        loop {
            let digit = match digits.next()? {
                letter @ b'a'..=b'z' => letter - b'a',
                letter @ b'A'..=b'Z' => letter - b'A',
                digit @ b'0'..=b'9' => digit - b'0' + 26,
                _ => return None,
            };
            i = i.checked_add(u32::from(digit).checked_mul(weight)?)?;
            let t = threshold(k, bias);
            if u32::from(digit) < t {
                break;
            }
            weight = weight.checked_mul(BASE - t)?;
            k += BASE;
        }
        let points = u32::try_from(out.len() + 1).ok()?;
        bias = adapt(i - old, points, old == 0);
        n = n.checked_add(i / points)?;
        i %= points;
        out.insert(usize::try_from(i).ok()?, char::from_u32(n)?);
        i += 1;
    }
    Some(out.into_iter().collect())
}

fn encode(text: &str) -> Option<String> {
    let letters: Vec<u32> = text.chars().map(u32::from).collect();
    if letters.len() > MAX_LABEL {
        return None;
    }
    let mut out: String = text.chars().filter(char::is_ascii).collect();
    let basic = u32::try_from(out.len()).ok()?;
    if basic > 0 {
        out.push('-');
    }
    let (mut n, mut delta, mut bias, mut done) = (INITIAL_N, 0_u32, INITIAL_BIAS, basic);
    while usize::try_from(done).ok()? < letters.len() {
        let next = *letters.iter().filter(|letter| **letter >= n).min()?;
        delta = delta.checked_add((next - n).checked_mul(done + 1)?)?;
        n = next;
        for letter in &letters {
            if *letter < n {
                delta = delta.checked_add(1)?;
            }
            if *letter == n {
                push_number(&mut out, delta, bias);
                bias = adapt(delta, done + 1, done == basic);
                delta = 0;
                done += 1;
            }
        }
        delta += 1;
        n += 1;
    }
    Some(out)
}

fn push_number(out: &mut String, mut number: u32, bias: u32) {
    let digit = |digit: u32| char::from_digit(digit, 36).expect("below the base");
    // Digits of the base: a to z, then 0 to 9; those of `from_digit` are the other way round.
    let letter = |value: u32| if value < 26 { digit(value + 10) } else { digit(value - 26) };
    let mut k = BASE;
    loop {
        let t = threshold(k, bias);
        if number < t {
            out.push(letter(number));
            return;
        }
        out.push(letter(t + (number - t) % (BASE - t)));
        number = (number - t) / (BASE - t);
        k += BASE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3492, 7.1, and names in use.
    #[test]
    fn known_labels() {
        for (unicode, ascii) in [
            ("⚡😊.com", "xn--57hw060o.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("他们为什么不说中文", "xn--ihqwcrb4cv8a8dqg056pqjye"),
            ("plain.example", "plain.example"),
        ] {
            assert_eq!(to_unicode(ascii).as_deref(), Some(unicode));
            assert_eq!(to_ascii(unicode).as_deref(), Some(ascii));
        }
        for wrong in ["xn--99999999999", "xn--a é", "xn--ü"] {
            assert_eq!(to_unicode(wrong), None, "{wrong}");
        }
    }
}
