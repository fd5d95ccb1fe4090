//! Which routes does a text hold: one a line, `prefix [next hop]` or `prefix [origin AS]`.
//!
//! Columns are separated by spaces or tabs. Everything from a `#` on is a comment; lines with nothing else are skipped.
//! A line without a second column leads to next hop 1 (origin 0, which stands for unknown, leads there too). A full
//! table has a million lines, so the common form of an IPv4 prefix is read byte by byte; what this does not
//! recognise goes to the library's parser, which also finds the words for what is wrong.

use std::net::Ipv4Addr;

use fib::NextHopId;
use ipnet::{IpNet, Ipv4Net};

use crate::bad_lines::BadLines;
use crate::subject::{MISS, RouteEntry};

/// What the second column of a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondColumn {
    /// The next hop's id.
    NextHop,
    /// An origin AS, spread over this many next hops by [`next_hop_of_origin`].
    Origin(u32),
}

/// The next hop of all routes of one origin: `1 + (((origin * 2654435761) mod 2^32) >> 16) mod next_hops`.
///
/// `next_hops` of 0 counts as 1.
pub fn next_hop_of_origin(origin: u32, next_hops: u32) -> u32 {
    1 + (origin.wrapping_mul(2_654_435_761) >> 16) % next_hops.max(1)
}

/// The lines of a text, without ends of line, numbered from 1.
pub fn lines(text: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (1..).zip(text.split(|&byte| byte == b'\n')).filter(|(_, line)| !line.is_empty())
}

/// The columns of a line; nothing when it is blank or a comment.
pub fn columns(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = line.iter().position(|&byte| byte == b'#').unwrap_or(line.len());
    line[..end].split(u8::is_ascii_whitespace).filter(|column| !column.is_empty())
}

/// Reads every line of `text`. Bad lines go to `bad` and are left out.
pub fn parse(text: &[u8], second: SecondColumn, bad: &mut BadLines) -> Vec<RouteEntry> {
    let mut routes = Vec::with_capacity(text.len() / 20);
    for (number, line) in lines(text) {
        match parse_line(line, second) {
            Ok(Some(route)) => routes.push(route),
            Ok(None) => {}
            Err(reason) => bad.add(number, || reason),
        }
    }
    routes
}

fn parse_line(line: &[u8], second: SecondColumn) -> Result<Option<RouteEntry>, String> {
    let mut columns = columns(line);
    let Some(prefix) = columns.next() else { return Ok(None) };
    let prefix = parse_prefix(prefix)?;
    let number =
        columns.next().map(|column| parse_number(column).ok_or_else(|| second.malformed(column))).transpose()?;
    if let Some(column) = columns.next() {
        return Err(format!("`{}` after the second column; write `prefix [number]`", show(column)));
    }
    let id = match second {
        SecondColumn::NextHop => number.unwrap_or(1),
        SecondColumn::Origin(next_hops) => next_hop_of_origin(number.unwrap_or(0), next_hops),
    };
    match NextHopId::new(id) {
        Ok(next_hop) if next_hop != MISS => Ok(Some((prefix, next_hop))),
        _ => Err(format!("next hop {id} is above {} (is the column an origin AS? then use --origins)", MISS.get() - 1)),
    }
}

impl SecondColumn {
    fn malformed(self, column: &[u8]) -> String {
        match self {
            SecondColumn::NextHop => format!("`{}` is not a next-hop id (0 to {})", show(column), MISS.get() - 1),
            SecondColumn::Origin(_) => format!("`{}` is not an AS number (0 to 4294967295)", show(column)),
        }
    }
}

/// Bytes of a file as text for a message, at most 64 characters of them.
pub fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(256)]).chars().take(64).collect()
}

/// A strict prefix (no host bits); a bare address is a host prefix.
pub fn parse_prefix(text: &[u8]) -> Result<IpNet, String> {
    if let Some(net) = parse_plain_v4(text) {
        return Ok(IpNet::V4(net));
    }
    let text = str::from_utf8(text).map_err(|_| format!("`{}` is not a prefix", show(text)))?;
    fib::parse_prefix(text).map_err(|error| error.to_string())
}

/// A decimal `u32` of digits only.
pub fn parse_number(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 10 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = text.iter().fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    u32::try_from(number).ok()
}

/// `a.b.c.d/len` without leading zeros and host bits, or `None`: the other parser decides then.
fn parse_plain_v4(text: &[u8]) -> Option<Ipv4Net> {
    let mut rest = text;
    let mut addr = 0;
    for end in *b"...//".first_chunk::<4>()? {
        let (number, after) = leading_number(rest)?;
        if number > 255 || *after.first()? != end {
            return None;
        }
        addr = addr << 8 | number;
        rest = &after[1..];
    }
    let (len, after) = leading_number(rest)?;
    if len > 32 || !after.is_empty() {
        return None;
    }
    let net = Ipv4Net::new(Ipv4Addr::from_bits(addr), len as u8).ok()?;
    (net.network() == net.addr()).then_some(net)
}

/// One to three digits without a leading zero, and what follows.
fn leading_number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > 3 || (digits > 1 && text[0] == b'0') {
        return None;
    }
    let number = text[..digits].iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
    Some((number, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_all(text: &str, second: SecondColumn) -> (Vec<String>, BadLines) {
        let mut bad = BadLines::new("x");
        let routes = parse(text.as_bytes(), second, &mut bad);
        (routes.iter().map(|(net, next_hop)| format!("{net} {next_hop}")).collect(), bad)
    }

    #[test]
    fn good_lines() {
        let text = "# head\n\n10.0.0.0/8 7\r\n  192.0.2.1\t9 # why\n2001:db8::/32\n0.0.0.0/0 0\n::/0 2147483645";
        let (routes, bad) = parse_all(text, SecondColumn::NextHop);
        assert_eq!(routes, ["10.0.0.0/8 7", "192.0.2.1/32 9", "2001:db8::/32 1", "0.0.0.0/0 0", "::/0 2147483645"]);
        assert_eq!(bad.count, 0);
    }

    #[test]
    fn bad_lines_are_named() {
        let cases = [
            ("10.0.0.1/8", "10.0.0.1/8 has host bits set; the prefix is 10.0.0.0/8"),
            ("10.0.0.0/33", "length 33 of prefix 10.0.0.0/33 is above 32"),
            ("2001:db8::/129 1", "length 129 of prefix 2001:db8::/129 is above 128"),
            ("10.0.0/8", "`10.0.0/8` is not a prefix"),
            ("010.0.0.0/8", "`010.0.0.0/8` is not a prefix"),
            ("10.0.0.0/ 8", "`10.0.0.0/` is not a prefix"),
            ("10.0.0.0/8 x", "`x` is not a next-hop id"),
            ("10.0.0.0/8 -1", "`-1` is not a next-hop id"),
            ("10.0.0.0/8 4294967296", "`4294967296` is not a next-hop id"),
            ("10.0.0.0/8 2147483646", "next hop 2147483646 is above 2147483645"),
            ("10.0.0.0/8 1 2", "`2` after the second column"),
            ("hello", "`hello` is not a prefix"),
        ];
        for (line, reason) in cases {
            let (routes, bad) = parse_all(&format!("\n{line}\n"), SecondColumn::NextHop);
            assert!(routes.is_empty(), "{line}");
            assert_eq!((bad.count, bad.first[0].line), (1, 2), "{line}");
            assert!(bad.first[0].reason.starts_with(reason), "{line}: {}", bad.first[0].reason);
        }
        let mut bad = BadLines::new("x");
        assert!(parse(b"\xff\xfe\x00 1\n", SecondColumn::NextHop, &mut bad).is_empty());
        assert_eq!(bad.count, 1);
    }

    #[test]
    fn all_bad_lines_are_counted_and_ten_kept() {
        let (_, bad) = parse_all(&"bad\n".repeat(25), SecondColumn::NextHop);
        assert_eq!((bad.count, bad.first.len()), (25, SHOWN_LINES));
        assert!(bad.to_string().ends_with("x: 25 bad lines, the first ten are shown"));
    }
    const SHOWN_LINES: usize = crate::bad_lines::SHOWN;

    #[test]
    fn plain_form_and_library_parser_agree() {
        for text in
            ["0.0.0.0/0", "255.255.255.255/32", "1.2.3.0/24", "10.0.0.0/08", "1.2.3.4/24", "256.0.0.0/8", "1.1.1.1/1a"]
        {
            if let Some(net) = parse_plain_v4(text.as_bytes()) {
                assert_eq!(fib::parse_prefix(text), Ok(IpNet::V4(net)));
            }
        }
        assert!(parse_plain_v4(b"1.2.3.0/24").is_some());
    }

    #[test]
    fn origins_follow_the_formula() {
        // Worked by hand from the definition with 128-bit arithmetic.
        for origin in [0u32, 1, 13335, 38803, 64_512, u32::MAX] {
            let product = (u128::from(origin) * 2_654_435_761) % (1 << 32);
            assert_eq!(u128::from(next_hop_of_origin(origin, 64)), 1 + (product >> 16) % 64);
        }
        assert_eq!(parse_all("10.0.0.0/8", SecondColumn::Origin(64)).0, ["10.0.0.0/8 1"]);
        assert_eq!(parse_all("10.0.0.0/8 4294967295", SecondColumn::Origin(1)).0, ["10.0.0.0/8 1"]);
    }
}
