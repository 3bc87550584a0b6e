import Foundation

/// A WAV of 16 bits, mono. samples: [n], clipped to [-1, 1]. rate: Hz.
public func writeWav(_ samples: [Float], rate: Int) -> Data {
    func little(_ number: Int, _ size: Int) -> Bytes { (0..<size).map { UInt8(number >> (8 * $0) & 255) } }
    let size = 2 * samples.count, format = little(16, 4) + little(1, 2) + little(1, 2) + little(rate, 4)
    var bytes = Bytes("RIFF".utf8) + little(36 + size, 4) + Bytes("WAVEfmt ".utf8) + format
    bytes += little(2 * rate, 4) + little(2, 2) + little(16, 2) + Bytes("data".utf8) + little(size, 4)
    bytes += samples.flatMap { little(Int((32767 * min(max($0, -1), 1)).rounded(.toNearestOrEven)), 2) }
    return Data(bytes)
}

/// The samples [n] of a WAV of 16 bits, mono, with this rate in Hz.
public func readWav(_ data: Data, rate: Int) throws -> [Float] {
    func number(_ at: Int, _ count: Int) -> Int {
        data.dropFirst(at).prefix(count).reversed().reduce(0) { $0 << 8 | Int($1) }
    }
    var at = 12
    while at + 8 <= data.count {
        let size = number(at + 4, 4), name = String(decoding: data.dropFirst(at).prefix(4), as: UTF8.self)
        if name == "data" { return pcm(data.dropFirst(at + 8).prefix(size)) }
        let format = (number(at + 10, 2), number(at + 12, 4), number(at + 22, 2))
        if name == "fmt ", format != (1, rate, 16) { break }
        at += 8 + size + size % 2
    }
    throw VoxportError("expected a mono WAV of 16 bits at \(rate) Hz")
}

/// Samples [n] of 16 bits, little-endian
func pcm(_ data: Data) -> [Float] {
    let bytes = Bytes(data).map { Int($0) }
    return stride(from: 0, to: bytes.count - 1, by: 2).map { at in
        Float(Int16(truncatingIfNeeded: bytes[at] | bytes[at + 1] << 8)) / 32768
    }
}
