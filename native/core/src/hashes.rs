//! The partitions that Kafka's own clients and Canal assign to keys.

const SEED: u32 = 0x9747_B28C;
const M: u32 = 0x5BD1_E995;

/// Returns Murmur 2 with Kafka's seed (`org.apache.kafka.common.utils.Utils.murmur2`).
pub fn murmur2(data: &[u8]) -> u32 {
    let mut value = SEED ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        value = value.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (i, &byte) in rest.iter().enumerate() {
            value ^= u32::from(byte) << (8 * i);
        }
        value = value.wrapping_mul(M);
    }
    value ^= value >> 13;
    value = value.wrapping_mul(M);
    value ^ value >> 15
}

/// Returns `toPositive(murmur2(key)) % partitions`.
pub(crate) fn partition(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7FFF_FFFF) % partitions
}

/// Returns `String.hashCode` of Java, of a text in UTF-8.
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |value, unit| value.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// Returns the partition of a hash in Canal (`MQMessageUtils.messagePartition`).
pub(crate) fn canal_partition(hash: i32, partitions: u32) -> u32 {
    hash.unsigned_abs() % partitions
}
