//! Which routes do these files hold: text or MRT, plain or packed with gzip or bzip2, told apart by content.
//!
//! ```text
//! first bytes 1f 8b       gzip  ┐ unpacked, then the first bytes are looked at once more:
//!             "BZh"       bzip2 ┘   MRT type at offset 4   mrt_routes
//!             else        as it is    else                   text_routes
//! ```
//!
//! A file that is missing, empty, cut or of an unknown kind is a [`Failure`] that names the place. Single lines that
//! cannot be used are counted, and are a failure too unless the user said `--keep-going`. A prefix that appears twice
//! keeps its last route, as it would in a router.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use bzip2::read::MultiBzDecoder;
use fib::Family;
use flate2::bufread::MultiGzDecoder;
use serde::Serialize;

use crate::bad_lines::BadLines;
use crate::failure::Failure;
use crate::mrt_routes;
use crate::subject::{RouteEntry, family_of};
use crate::text_routes::{self, SecondColumn};

/// What one file held; the part of it that reports show.
#[derive(Debug, Clone, Serialize)]
pub struct FileNote {
    /// The file as it was named.
    pub file: String,
    /// `text`, `text gzip`, `mrt bzip2`, ...
    pub format: String,
    /// Routes read from it.
    pub routes: usize,
    /// Lines or records that could not be used.
    pub bad_lines: u64,
}

/// The routes of one or several files.
#[derive(Debug, Default)]
pub struct RouteSet {
    /// Each prefix once, in the order of the files.
    pub routes: Vec<RouteEntry>,
    /// Routes that a later one with the same prefix replaced.
    pub duplicates: usize,
    /// One note per file.
    pub files: Vec<FileNote>,
    /// Bad lines of each file that has some.
    pub bad: Vec<BadLines>,
}

impl RouteSet {
    /// Reads files one after the other. Bad lines are a failure that shows them, unless `keep_going`.
    pub fn read<P: AsRef<Path>>(files: &[P], second: SecondColumn, keep_going: bool) -> Result<RouteSet, Failure> {
        let mut set = RouteSet::default();
        for file in files {
            set.read_one(file.as_ref(), second)?;
        }
        if !set.bad.is_empty() && !keep_going {
            let bad: Vec<String> = set.bad.iter().map(BadLines::to_string).collect();
            return Err(Failure::new(format!("{}\n--keep-going goes on without them", bad.join("\n"))));
        }
        set.duplicates = keep_last(&mut set.routes);
        Ok(set)
    }

    fn read_one(&mut self, path: &Path, second: SecondColumn) -> Result<(), Failure> {
        let name = path.display().to_string();
        let mut bad = BadLines::new(&name);
        let mut source = Source::open(path)?;
        let start = source.input.fill_buf().map_err(|error| source.packing.broken(&name, &error, 0, 0))?;
        if start.is_empty() {
            return Err(Failure::new(format!("{name}: the file is empty")));
        }
        let (kind, routes) = if mrt_routes::is_mrt(start) {
            ("mrt", mrt_routes::parse(&name, &mut source.input, second, &mut bad)?.routes)
        } else {
            ("text", text_routes::parse(&source.text(&name)?, second, &mut bad))
        };
        if routes.is_empty() && bad.count == 0 {
            return Err(Failure::new(format!("{name}: no route in the file")));
        }
        self.files.push(FileNote {
            file: name,
            format: format!("{kind}{}", source.packing.suffix()),
            routes: routes.len(),
            bad_lines: bad.count,
        });
        if self.routes.is_empty() {
            self.routes = routes;
        } else {
            self.routes.extend(routes);
        }
        if bad.count > 0 {
            self.bad.push(bad);
        }
        Ok(())
    }

    /// Routes of one family, in order of the files.
    pub fn of(&self, family: Family) -> Vec<RouteEntry> {
        self.routes.iter().copied().filter(|&(prefix, _)| family_of(prefix) == family).collect()
    }
}

/// Drops every route that a later one replaces; how many.
pub fn keep_last(routes: &mut Vec<RouteEntry>) -> usize {
    // Full tables come sorted; then one pass tells that there is nothing to do.
    if routes.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        return 0;
    }
    let before = routes.len();
    let mut seen = HashSet::with_capacity(before);
    routes.reverse();
    routes.retain(|&(prefix, _)| seen.insert(prefix));
    routes.reverse();
    before - routes.len()
}

/// How the bytes of a file are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Bzip2,
}

impl Packing {
    fn suffix(self) -> &'static str {
        match self {
            Packing::Plain => "",
            Packing::Gzip => " gzip",
            Packing::Bzip2 => " bzip2",
        }
    }

    fn broken(self, name: &str, error: &io::Error, bytes: usize, line: usize) -> Failure {
        if self == Packing::Plain {
            return Failure::at(name, error);
        }
        let what = if error.kind() == io::ErrorKind::UnexpectedEof { "ends too early" } else { "is broken" };
        Failure::new(format!(
            "{name}: the{} data {what} after {bytes} unpacked bytes, line {line} ({error}); nothing of it is used",
            self.suffix()
        ))
    }
}

/// An open file behind its unpacker.
pub struct Source {
    input: Box<dyn BufRead>,
    packing: Packing,
}

impl Source {
    /// Opens a file and finds out how it is packed.
    pub fn open(path: &Path) -> Result<Source, Failure> {
        let name = path.display();
        let mut file = BufReader::with_capacity(1 << 18, File::open(path).map_err(|error| Failure::at(name, error))?);
        let start = file.fill_buf().map_err(|error| Failure::at(path.display(), error))?;
        let packing = match start {
            [0x1f, 0x8b, ..] => Packing::Gzip,
            [b'B', b'Z', b'h', ..] => Packing::Bzip2,
            _ => Packing::Plain,
        };
        let input: Box<dyn BufRead> = match packing {
            Packing::Plain => Box::new(file),
            Packing::Gzip => Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file))),
            Packing::Bzip2 => Box::new(BufReader::with_capacity(1 << 18, MultiBzDecoder::new(file))),
        };
        Ok(Source { input, packing })
    }

    /// The whole unpacked file, which is not MRT. Text has no zero bytes; a file with one early on is something else.
    pub fn text(&mut self, name: &str) -> Result<Vec<u8>, Failure> {
        let mut text = Vec::new();
        if let Err(error) = self.input.read_to_end(&mut text) {
            let line = text.iter().filter(|&&byte| byte == b'\n').count() + 1;
            return Err(self.packing.broken(name, &error, text.len(), line));
        }
        if text.iter().take(512).any(|&byte| byte == 0) {
            return Err(Failure::new(format!("{name}: neither text nor MRT (also not packed with gzip or bzip2)")));
        }
        Ok(text)
    }
}

/// The whole text of a file, packed or not.
pub fn read_text(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display().to_string();
    let text = Source::open(path)?.text(&name)?;
    if text.is_empty() {
        return Err(Failure::new(format!("{name}: the file is empty")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::path::PathBuf;

    use bgpkit_parser::encoder::MrtRibEncoder;
    use bgpkit_parser::models::{AsPath, BgpElem, NetworkPrefix};
    use bzip2::write::BzEncoder;
    use flate2::write::GzEncoder;
    use tempfile::TempDir;

    use super::*;

    struct Files(TempDir);

    impl Files {
        fn new() -> Self {
            Files(tempfile::tempdir().unwrap())
        }
        fn write(&self, name: &str, content: &[u8]) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        }
    }

    fn gz(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn bz(content: &[u8]) -> Vec<u8> {
        let mut encoder = BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn read(path: &Path) -> Result<RouteSet, Failure> {
        RouteSet::read(&[path], SecondColumn::NextHop, false)
    }

    fn shown(set: &RouteSet) -> Vec<String> {
        set.routes.iter().map(|(net, next_hop)| format!("{net} {next_hop}")).collect()
    }

    /// A dump of two peers with IPv4 and IPv6 routes, as the parser crate writes it.
    fn mrt() -> Vec<u8> {
        let mut encoder = MrtRibEncoder::new();
        let peers = ["192.0.2.1", "192.0.2.2"];
        for (index, prefix) in ["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32"].into_iter().enumerate() {
            let net: ipnet::IpNet = prefix.parse().unwrap();
            let next_hop = match net {
                ipnet::IpNet::V4(_) => IpAddr::V4(Ipv4Addr::new(198, 51, 100, index as u8)),
                ipnet::IpNet::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            };
            let elem = BgpElem {
                timestamp: 1_700_000_000.0,
                peer_ip: peers[index % 2].parse().unwrap(),
                peer_asn: 64_500.into(),
                prefix: NetworkPrefix::new(net, None),
                next_hop: Some(next_hop),
                as_path: Some(AsPath::from_sequence([64_500, 64_501 + index as u32])),
                ..Default::default()
            };
            encoder.process_elem(&elem).unwrap();
        }
        encoder.export_bytes().unwrap().to_vec()
    }

    #[test]
    fn text_plain_and_packed_is_told_by_content() {
        let files = Files::new();
        let text = b"10.0.0.0/8 7\n2001:db8::/32 9\n";
        // The names lie on purpose.
        let cases = [("a.gz", text.to_vec(), "text"), ("b", gz(text), "text gzip"), ("c.txt", bz(text), "text bzip2")];
        for (name, content, format) in cases {
            let set = read(&files.write(name, &content)).unwrap();
            assert_eq!(shown(&set), ["10.0.0.0/8 7", "2001:db8::/32 9"]);
            assert_eq!(set.files[0].format, format);
        }
        // Two gzip members one after the other, as log rotation makes them.
        let set = read(&files.write("d", &[gz(b"10.0.0.0/8\n"), gz(b"11.0.0.0/8\n")].concat())).unwrap();
        assert_eq!(shown(&set), ["10.0.0.0/8 1", "11.0.0.0/8 1"]);
    }

    #[test]
    fn mrt_plain_and_packed() {
        let files = Files::new();
        for (name, content, format) in
            [("a", mrt(), "mrt"), ("b", gz(&mrt()), "mrt gzip"), ("c", bz(&mrt()), "mrt bzip2")]
        {
            let path = files.write(name, &content);
            let set = read(&path).unwrap();
            assert_eq!(set.files[0].format, format);
            assert_eq!(set.bad, []);
            let mut prefixes: Vec<String> = set.routes.iter().map(|(net, _)| net.to_string()).collect();
            prefixes.sort();
            assert_eq!(prefixes, ["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32"]);
            // Three next-hop addresses, numbered without gaps.
            let mut ids: Vec<u32> = set.routes.iter().map(|(_, next_hop)| next_hop.get()).collect();
            ids.sort();
            assert_eq!(ids, [1, 2, 3]);
            let set = RouteSet::read(&[&path], SecondColumn::Origin(64), false).unwrap();
            for (net, next_hop) in set.routes {
                let index = prefixes.iter().position(|prefix| *prefix == net.to_string()).unwrap();
                assert_eq!(next_hop.get(), text_routes::next_hop_of_origin(64_501 + index as u32, 64));
            }
        }
    }

    #[test]
    fn mrt_cut_anywhere_is_an_error_with_the_place() {
        let files = Files::new();
        let whole = mrt();
        let mut boundaries = vec![];
        let mut at = 0;
        while at < whole.len() {
            at += 12 + u32::from_be_bytes(whole[at + 8..at + 12].try_into().unwrap()) as usize;
            boundaries.push(at);
        }
        for cut in 6..whole.len() {
            let result = read(&files.write("cut", &whole[..cut]));
            if boundaries.contains(&cut) {
                continue;
            }
            let message = result.unwrap_err().to_string();
            let record = boundaries.iter().filter(|&&end| end <= cut).count() + 1;
            assert!(message.contains(&format!("cut: MRT record {record} at byte")), "{cut}: {message}");
        }
        let message = read(&files.write("cut.gz", &gz(&whole)[..80])).unwrap_err().to_string();
        assert!(message.contains("cut.gz: "), "{message}");
    }

    #[test]
    fn mrt_records_that_make_no_sense_are_bad_lines() {
        let files = Files::new();
        let mut broken = mrt();
        // The length of the last record's prefix (after header and sequence number) becomes 255.
        let mut at = 0;
        let mut last = 0;
        while at < broken.len() {
            last = at;
            at += 12 + u32::from_be_bytes(broken[at + 8..at + 12].try_into().unwrap()) as usize;
        }
        broken[last + 16] = 255;
        let path = files.write("broken", &broken);
        assert!(read(&path).unwrap_err().to_string().contains("broken:4: "));
        let set = RouteSet::read(&[&path], SecondColumn::NextHop, true).unwrap();
        assert_eq!((set.routes.len(), set.bad[0].count), (2, 1));
        // An update trace is MRT too, but holds no table.
        let other = [&[0, 0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 2][..], &[0, 0]].concat();
        let message = read(&files.write("updates", &other)).unwrap_err().to_string();
        assert!(message.contains("updates:1: record of type BGP4MP, not TABLE_DUMP_V2"), "{message}");
    }

    #[test]
    fn truncated_packed_text_is_an_error_with_the_place() {
        let files = Files::new();
        let text: String = (0..20_000).map(|i| format!("10.{}.{}.0/24 {i}\n", i / 256 % 256, i % 256)).collect();
        for (name, packed) in [("a.gz", gz(text.as_bytes())), ("b.bz2", bz(text.as_bytes()))] {
            for cut in [packed.len() / 2, packed.len() - 1] {
                let message = read(&files.write(name, &packed[..cut])).unwrap_err().to_string();
                assert!(message.contains("ends too early after ") && message.contains("line "), "{message}");
            }
        }
        let mut broken = gz(text.as_bytes());
        let middle = broken.len() / 2;
        broken[middle..middle + 64].fill(0xff);
        let message = read(&files.write("broken.gz", &broken)).unwrap_err().to_string();
        assert!(message.contains("broken.gz: the gzip data is broken after"), "{message}");
    }

    #[test]
    fn missing_empty_and_foreign_files_are_errors() {
        let files = Files::new();
        let missing = files.0.path().join("missing");
        assert!(read(&missing).unwrap_err().to_string().contains("missing: No such file"));
        assert!(read(files.0.path()).is_err(), "a directory");
        let cases: [(&str, Vec<u8>, &str); 5] = [
            ("empty", vec![], "the file is empty"),
            ("empty.gz", gz(b""), "the file is empty"),
            ("comments", b"# nothing\n\n".to_vec(), "no route in the file"),
            ("elf", b"\x7fELF\x02\x01\x01\x00\x00\x00".to_vec(), "neither text nor MRT"),
            ("stub.gz", vec![0x1f, 0x8b], "ends too early"),
        ];
        for (name, content, words) in cases {
            let message = read(&files.write(name, &content)).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains(name), "{name}: {message}");
        }
    }

    #[test]
    fn bad_lines_stop_unless_told_to_keep_going() {
        let files = Files::new();
        let path = files.write("x", b"10.0.0.0/8 1\n10.0.0.1/8 2\n11.0.0.0/8 3\n");
        assert!(read(&path).unwrap_err().to_string().contains("x:2: 10.0.0.1/8 has host bits set"));
        let set = RouteSet::read(&[&path], SecondColumn::NextHop, true).unwrap();
        assert_eq!(shown(&set), ["10.0.0.0/8 1", "11.0.0.0/8 3"]);
        assert_eq!((set.bad[0].count, set.files[0].bad_lines), (1, 1));
    }

    #[test]
    fn the_last_route_of_a_prefix_stays() {
        let files = Files::new();
        let first = files.write("1", b"10.0.0.0/8 1\n11.0.0.0/8 2\n10.0.0.0/8 3\n");
        let second = files.write("2", b"11.0.0.0/8 4\n9.0.0.0/8 5\n");
        let set = RouteSet::read(&[first, second], SecondColumn::NextHop, false).unwrap();
        assert_eq!(shown(&set), ["10.0.0.0/8 3", "11.0.0.0/8 4", "9.0.0.0/8 5"]);
        assert_eq!(set.duplicates, 2);
    }
}
