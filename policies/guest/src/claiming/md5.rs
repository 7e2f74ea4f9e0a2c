//! MD5, for compatibility with hash rings that use it; not for anything that must be secure.
//!
//! Source: RFC 1321.

const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
/// `floor(2^32 * |sin(i + 1)|)`.
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xD76A_A478, 0xE8C7_B756, 0x2420_70DB, 0xC1BD_CEEE, 0xF57C_0FAF, 0x4787_C62A,
    0xA830_4613, 0xFD46_9501, 0x6980_98D8, 0x8B44_F7AF, 0xFFFF_5BB1, 0x895C_D7BE,
    0x6B90_1122, 0xFD98_7193, 0xA679_438E, 0x49B4_0821, 0xF61E_2562, 0xC040_B340,
    0x265E_5A51, 0xE9B6_C7AA, 0xD62F_105D, 0x0244_1453, 0xD8A1_E681, 0xE7D3_FBC8,
    0x21E1_CDE6, 0xC337_07D6, 0xF4D5_0D87, 0x455A_14ED, 0xA9E3_E905, 0xFCEF_A3F8,
    0x676F_02D9, 0x8D2A_4C8A, 0xFFFA_3942, 0x8771_F681, 0x6D9D_6122, 0xFDE5_380C,
    0xA4BE_EA44, 0x4BDE_CFA9, 0xF6BB_4B60, 0xBEBF_BC70, 0x289B_7EC6, 0xEAA1_27FA,
    0xD4EF_3085, 0x0488_1D05, 0xD9D4_D039, 0xE6DB_99E5, 0x1FA2_7CF8, 0xC4AC_5665,
    0xF429_2244, 0x432A_FF97, 0xAB94_23A7, 0xFC93_A039, 0x655B_59C3, 0x8F0C_CC92,
    0xFFEF_F47D, 0x8584_5DD1, 0x6FA8_7E4F, 0xFE2C_E6E0, 0xA301_4314, 0x4E08_11A1,
    0xF753_7E82, 0xBD3A_F235, 0x2AD7_D2BB, 0xEB86_D391,
];

/// Returns the digest of some bytes.
pub(super) fn md5(bytes: &[u8]) -> [u8; 16] {
    let mut state = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
    let mut blocks = bytes.chunks_exact(64);
    for block in &mut blocks {
        mix(&mut state, block);
    }
    let rest = blocks.remainder();
    let mut last = [0_u8; 128];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    let end = if rest.len() < 56 { 64 } else { 128 };
    last[end - 8..end].copy_from_slice(&(bytes.len() as u64 * 8).to_le_bytes());
    for block in last[..end].chunks_exact(64) {
        mix(&mut state, block);
    }
    let mut digest = [0; 16];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    digest
}

fn mix(state: &mut [u32; 4], block: &[u8]) {
    let word = |at: usize| {
        u32::from_le_bytes([block[4 * at], block[4 * at + 1], block[4 * at + 2], block[4 * at + 3]])
    };
    let [mut a, mut b, mut c, mut d] = *state;
    for (at, &sine) in SINES.iter().enumerate() {
        let (mixed, from) = match at / 16 {
            0 => ((b & c) | (!b & d), at),
            1 => ((d & b) | (!d & c), (5 * at + 1) % 16),
            2 => (b ^ c ^ d, (3 * at + 5) % 16),
            _ => (c ^ (b | !d), (7 * at) % 16),
        };
        let sum = a.wrapping_add(mixed).wrapping_add(sine).wrapping_add(word(from));
        (a, d, c) = (d, c, b);
        b = b.wrapping_add(sum.rotate_left(SHIFTS[at / 16][at % 4]));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_digests_of_the_rfc() {
        let check = |text: &str, expected: &str| {
            let hex: String = md5(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected, "{text:?}");
        };
        check("", "d41d8cd98f00b204e9800998ecf8427e");
        check("abc", "900150983cd24fb0d6963f7d28e17f72");
        check("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b");
        check(&"1234567890".repeat(8), "57edf4a22be3c955ac49da2e2107b67a");
        check(&"x".repeat(55), "04364420e25c512fd958a70738aa8f72");
        check(&"x".repeat(56), "668a72d5ba17f08e62dabcafad6db14b");
        check(&"x".repeat(63), "7dc2ca208106a2f703567bdff99d8981");
        check(&"x".repeat(64), "c1bb4f81d892b2d57947682aeb252456");
        check(&"x".repeat(65), "1bc932052302d074bdec39795fe00cf6");
        check(&"x".repeat(119), "ab347a5f68c8a443cfcddc633f12c24f");
        check(&"x".repeat(120), "fb98667f98096de92620b64f46e1c5b5");
        check(&"x".repeat(128), "d69cb61a6ee87200676eb0d4b90edbcb");
    }
}
