//! Which routes does an MRT dump hold: the unicast records of TABLE_DUMP_V2 (RFC 6396).
//!
//! A record lists one prefix with an entry per peer of the collector. A dump does not say which entry a router would
//! have chosen, so the first one is taken, which is the same peer's for most prefixes. Its next hop is the address in
//! NEXT_HOP or MP_REACH_NLRI, or the peer's own when there is neither; addresses get the numbers 1, 2, 3 ... in the
//! order in which they first appear. With `--origins N` the last AS of the path decides instead, as for a text.
//! Bits behind a prefix's length have no meaning in MRT and are cleared. Multicast and other records are skipped.

use std::collections::HashMap;
use std::io::Read;
use std::net::IpAddr;

use bgpkit_parser::ParserError;
use bgpkit_parser::models::{
    EntryType, MrtMessage, PeerIndexTable, RibAfiEntries, RibEntry, TableDumpV2Message, TableDumpV2Type,
};
use bgpkit_parser::parser::chunk_mrt_record;
use fib::NextHopId;

use crate::bad_lines::BadLines;
use crate::failure::Failure;
use crate::subject::RouteEntry;
use crate::text_routes::{SecondColumn, next_hop_of_origin};

/// Whether these first bytes of a file are an MRT header: a type of RFC 6396 at offset 4, which no text has there.
pub fn is_mrt(start: &[u8]) -> bool {
    start.len() >= 6 && matches!(u16::from_be_bytes([start[4], start[5]]), 11..=17 | 32 | 33 | 48 | 49)
}

/// Numbers for addresses: dense, from `next` on, in order of first appearance.
#[derive(Debug)]
pub struct AddressNumbers {
    known: HashMap<IpAddr, u32>,
    next: u32,
}

impl AddressNumbers {
    /// The first address will get the number `first`.
    pub fn starting_at(first: u32) -> Self {
        AddressNumbers { known: HashMap::new(), next: first }
    }

    /// The number of `addr`.
    pub fn of(&mut self, addr: IpAddr) -> u32 {
        *self.known.entry(addr).or_insert_with(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// How many addresses have a number.
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

/// What was read of a dump.
#[derive(Debug)]
pub struct Dump {
    /// One route per record.
    pub routes: Vec<RouteEntry>,
    /// Records of any kind.
    pub records: u64,
}

/// Reads the dump to its end. Records that cannot be understood go to `bad` (numbered from 1) and are left out; a
/// dump that ends inside a record is an error, since an unknown number of routes is missing.
pub fn parse(file: &str, input: &mut impl Read, second: SecondColumn, bad: &mut BadLines) -> Result<Dump, Failure> {
    let mut dump = Dump { routes: Vec::new(), records: 0 };
    let mut peers = PeerIndexTable::default();
    let mut numbers = AddressNumbers::starting_at(1);
    let mut offset = 0;
    loop {
        let record = match chunk_mrt_record(input) {
            Ok(record) => record,
            Err(error) if matches!(error.error, ParserError::EofExpected) => return Ok(dump),
            Err(error) => {
                let routes = dump.routes.len();
                return Err(Failure::new(format!(
                    "{file}: MRT record {} at byte {offset} is cut or broken ({}); {routes} routes before it are not used",
                    dump.records + 1,
                    error.error
                )));
            }
        };
        dump.records += 1;
        offset += record.total_bytes_len();
        if record.common_header.entry_type != EntryType::TABLE_DUMP_V2 {
            bad.add(dump.records, || {
                format!("record of type {:?}, not TABLE_DUMP_V2", record.common_header.entry_type)
            });
            continue;
        }
        let entries = match record.parse().map(|record| record.message) {
            Ok(MrtMessage::TableDumpV2Message(TableDumpV2Message::PeerIndexTable(table))) => {
                peers = table;
                continue;
            }
            Ok(MrtMessage::TableDumpV2Message(TableDumpV2Message::RibAfi(entries))) => entries,
            Ok(_) => continue,
            Err(error) => {
                bad.add(dump.records, || error.to_string());
                continue;
            }
        };
        match route(&entries, &peers, second, &mut numbers) {
            Ok(Some(route)) => dump.routes.push(route),
            Ok(None) => {}
            Err(reason) => bad.add(dump.records, || reason.to_owned()),
        }
    }
}

fn route(
    entries: &RibAfiEntries,
    peers: &PeerIndexTable,
    second: SecondColumn,
    numbers: &mut AddressNumbers,
) -> Result<Option<RouteEntry>, &'static str> {
    let is_unicast = matches!(
        entries.rib_type,
        TableDumpV2Type::RibIpv4Unicast
            | TableDumpV2Type::RibIpv6Unicast
            | TableDumpV2Type::RibIpv4UnicastAddPath
            | TableDumpV2Type::RibIpv6UnicastAddPath
    );
    if !is_unicast {
        return Ok(None);
    }
    let entry = entries.rib_entries.first().ok_or("no readable entry for the prefix")?;
    let number = match second {
        SecondColumn::NextHop => numbers.of(next_hop_address(entry, peers).ok_or("no next hop and no known peer")?),
        SecondColumn::Origin(next_hops) => {
            let origin = entry.attributes.as_path().and_then(|path| path.get_origin_opt());
            next_hop_of_origin(origin.map_or(0, |asn| asn.to_u32()), next_hops)
        }
    };
    let next_hop = NextHopId::new(number).map_err(|_| "too many next hops")?;
    Ok(Some((entries.prefix.prefix.trunc(), next_hop)))
}

fn next_hop_address(entry: &RibEntry, peers: &PeerIndexTable) -> Option<IpAddr> {
    let reachable = || Some(entry.attributes.get_reachable_nlri()?.next_hop.as_ref()?.addr());
    let peer = || Some(peers.id_peer_map.get(&entry.peer_index)?.peer_ip);
    entry.attributes.next_hop().or_else(reachable).or_else(peer)
}
