//! What real tables look like: numbers measured on a full IPv4 and a full IPv6 table, which the generator imitates.
//!
//! A table is seen as a binary tree over the populated top blocks: cut in halves, down to the *top* prefixes, which no
//! other prefix covers, and to the *gaps*, which nothing covers at all. Inside some prefixes, the *parents*, lie
//! *nested* ones, some `extra_bits` longer than their parent.
//!
//! ```text
//! block /8 ─┬─ half ─┬─ top /10        one leaf of the tree; may be the parent of nested /24s
//!           │        └─ gap /10
//!           └─ half ─── ...
//! ```
//!
//! All lists are (length or number of bits, how many).

/// The numbers of one family.
#[derive(Debug, Clone, Copy)]
pub struct Calibration {
    /// The first bits of the populated top blocks, as ranges with both ends included.
    pub bases: &'static [(u32, u32)],
    /// Length of the top blocks.
    pub base_len: u8,
    /// Prefixes that no other one covers.
    pub top: &'static [(u8, u32)],
    /// Largest blocks that no prefix covers.
    pub gaps: &'static [(u8, u32)],
    /// Prefixes inside another one.
    pub nested: &'static [(u8, u32)],
    /// Prefixes with nested ones inside.
    pub parents: &'static [(u8, u32)],
    /// How much longer nested prefixes are than the next one that covers them.
    pub extra_bits: &'static [(u8, u32)],
    /// Distinct origins.
    pub origins: u32,
    /// Share of routes with an unknown origin.
    pub unknown_origin: f64,
    /// Share of top prefixes with the origin of the one before.
    pub same_origin_next: f64,
    /// Share of nested prefixes with the origin of their parent.
    pub same_origin_inside: f64,
    /// How many neighbouring blocks of the tree have the same fate, up to and including a length. Chosen so that the
    /// tables come out alike.
    pub runs: &'static [(u8, f64)],
    /// Share of parents that are top prefixes. Chosen likewise.
    pub parents_on_top: f64,
    /// Likelihood that nested prefixes fill their parent, when that takes at most 16. Chosen likewise.
    pub cover_whole: f64,
}

impl Calibration {
    /// The entry of `runs` for a length.
    pub fn mean_run(&self, len: u8) -> f64 {
        self.runs.iter().find(|&&(up_to, _)| len <= up_to).map_or(1.0, |&(_, run)| run)
    }

    /// How many prefixes of each length a table has (index = length).
    pub fn histogram(&self) -> Vec<u32> {
        let mut counts = vec![0; 129];
        for &(len, count) in self.top.iter().chain(self.nested) {
            counts[usize::from(len)] += count;
        }
        counts
    }
}

/// A full IPv4 table of a transit provider: 901,899 prefixes.
pub const V4: Calibration = Calibration {
    bases: &[(1, 9), (11, 47), (49, 126), (128, 223)],
    base_len: 8,
    top: &[
        (8, 16), (9, 9), (10, 38), (11, 99), (12, 268), (13, 485), (14, 1_025), (15, 1_636), (16, 10_284),
        (17, 4_481), (18, 6_923), (19, 15_055), (20, 19_405), (21, 23_027), (22, 59_396), (23, 41_454),
        (24, 261_082), (28, 1), (32, 6),
    ],
    gaps: &[
        (9, 2), (10, 8), (11, 21), (12, 43), (13, 78), (14, 218), (15, 519), (16, 1_838), (17, 1_259), (18, 2_218),
        (19, 3_883), (20, 6_320), (21, 10_675), (22, 20_808), (23, 26_659), (24, 40_783), (25, 4), (26, 6), (27, 6),
        (28, 5), (29, 6), (30, 6), (31, 6), (32, 6),
    ],
    nested: &[
        (9, 4), (11, 4), (12, 31), (13, 96), (14, 178), (15, 464), (16, 3_206), (17, 3_754), (18, 6_875),
        (19, 9_815), (20, 23_206), (21, 27_723), (22, 49_227), (23, 55_056), (24, 276_616), (25, 20), (26, 3),
        (27, 11), (28, 17), (29, 17), (30, 3), (31, 3), (32, 880),
    ],
    parents: &[
        (8, 11), (9, 11), (10, 25), (11, 66), (12, 178), (13, 386), (14, 773), (15, 1_148), (16, 5_875),
        (17, 3_408), (18, 4_938), (19, 9_585), (20, 10_807), (21, 10_581), (22, 22_434), (23, 17_955), (24, 178),
    ],
    extra_bits: &[
        (1, 70_531), (2, 57_434), (3, 40_549), (4, 53_480), (5, 50_792), (6, 41_923), (7, 32_871), (8, 48_742),
        (9, 17_125), (10, 12_203), (11, 8_366), (12, 7_845), (13, 4_802), (14, 2_633), (15, 3_358), (16, 4_549),
    ],
    origins: 71_302,
    unknown_origin: 0.03,
    same_origin_next: 0.498,
    same_origin_inside: 0.828,
    runs: &[(128, 2.0)],
    parents_on_top: 0.8,
    cover_whole: 0.45,
};

/// The IPv6 table of the same router: 160,147 prefixes, less 19 outside the top blocks.
pub const V6: Calibration = Calibration {
    bases: &[
        (0x2001, 0x2001),
        (0x2400, 0x240f),
        (0x2600, 0x2610),
        (0x2620, 0x2620),
        (0x2800, 0x2807),
        (0x2a00, 0x2a13),
        (0x2c0e, 0x2c0f),
    ],
    base_len: 16,
    top: &[
        (20, 16), (21, 3), (22, 7), (23, 8), (24, 27), (25, 7), (26, 15), (27, 18), (28, 108), (29, 4_317),
        (30, 367), (31, 154), (32, 16_821), (33, 559), (34, 730), (35, 394), (36, 2_604), (37, 217), (38, 769),
        (39, 247), (40, 3_167), (41, 423), (42, 469), (43, 567), (44, 4_059), (45, 285), (46, 1_421), (47, 676),
        (48, 30_575), (56, 1), (60, 2), (64, 5),
    ],
    gaps: &[
        (16, 8), (17, 9), (18, 22), (19, 39), (20, 59), (21, 69), (22, 82), (23, 212), (24, 1_048), (25, 3_476),
        (26, 7_314), (27, 12_441), (28, 13_855), (29, 15_067), (30, 13_729), (31, 18_377), (32, 18_886),
        (33, 4_567), (34, 5_289), (35, 5_835), (36, 6_488), (37, 6_310), (38, 6_716), (39, 7_116), (40, 8_082),
        (41, 7_345), (42, 7_843), (43, 8_603), (44, 9_429), (45, 9_157), (46, 10_370), (47, 11_895), (48, 13_512),
        (49, 7), (50, 7), (51, 7), (52, 7), (53, 7), (54, 7), (55, 7), (56, 7), (57, 6), (58, 6), (59, 6), (60, 6),
        (61, 4), (62, 4), (63, 4), (64, 3),
    ],
    nested: &[
        (24, 3), (25, 1), (27, 2), (28, 85), (29, 54), (30, 283), (31, 130), (32, 5_727), (33, 2_367), (34, 1_873),
        (35, 649), (36, 3_392), (37, 663), (38, 848), (39, 1_130), (40, 10_235), (41, 480), (42, 1_832), (43, 434),
        (44, 10_306), (45, 1_268), (46, 1_618), (47, 2_477), (48, 44_913), (49, 11), (50, 3), (52, 1), (55, 1),
        (56, 23), (58, 20), (64, 178), (112, 2), (122, 1), (124, 4), (125, 9), (126, 19), (127, 42), (128, 6),
    ],
    parents: &[
        (20, 9), (21, 1), (22, 4), (23, 4), (24, 8), (25, 2), (26, 5), (27, 13), (28, 50), (29, 564), (30, 113),
        (31, 68), (32, 4_085), (33, 837), (34, 351), (35, 287), (36, 592), (37, 74), (38, 183), (39, 205),
        (40, 928), (41, 64), (42, 172), (43, 336), (44, 607), (45, 93), (46, 310), (47, 807), (48, 24), (64, 2),
    ],
    extra_bits: &[
        (1, 6_925), (2, 1_765), (3, 1_720), (4, 6_483), (5, 1_750), (6, 3_657), (7, 1_882), (8, 13_536), (9, 930),
        (10, 2_589), (11, 2_365), (12, 13_935), (13, 1_652), (14, 2_092), (15, 1_305), (16, 18_236), (17, 387),
        (18, 564), (19, 6_970), (20, 720), (21, 39), (22, 12), (23, 10), (24, 1_015), (26, 23), (28, 289),
        (32, 132), (35, 13), (98, 64),
    ],
    origins: 23_282,
    unknown_origin: 0.096,
    same_origin_next: 0.503,
    same_origin_inside: 0.822,
    runs: &[(128, 2.0)],
    parents_on_top: 0.8,
    cover_whole: 0.3,
};
