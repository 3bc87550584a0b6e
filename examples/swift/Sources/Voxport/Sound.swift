import Foundation

/// A WAV of 16 bits, mono. samples: [n], clipped to [-1, 1]. rate: Hz.
public func writeWav(_ samples: [Float], rate: Int) -> Data {
    func little(_ number: Int, _ size: Int) -> Bytes { (0..<size).map { UInt8(number >> (8 * $0) & 255) } }
    let size = 2 * samples.count, format = little(16, 4) + little(1, 2) + little(1, 2) + little(rate, 4)
    var bytes = Bytes("RIFF".utf8) + little(36 + size, 4) + Bytes("WAVEfmt ".utf8) + format
    bytes += little(2 * rate, 4) + little(2, 2) + little(16, 2) + Bytes("data".utf8) + little(size, 4)
    let scaled = samples.map { (32767 * min(max(Double($0), -1), 1)).rounded(.toNearestOrEven) }
    bytes += scaled.flatMap { little(Int($0), 2) }
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

/// Removes the offset of a recording, and makes a quiet one as loud as the model expects. [n] in [-1, 1].
public func amplify(_ recording: [Float]) -> [Float] {
    let mean = recording.reduce(0, +) / Float(max(1, recording.count)), samples = recording.map { $0 - mean }
    let peak = samples.reduce(0) { max($0, abs($1)) }
    let isQuiet = peak >= pow(10, -3) && peak < pow(10, -0.3)  // -60 dB, -6 dB
    return isQuiet ? samples.map { $0 * min(100, pow(10, -0.05) / peak) } : samples  // 40 dB, -1 dB
}

func silence(_ count: Int) -> [Float] { [Float](repeating: 0, count: count) }

/// Triangular filters on Slaney's mel scale: for each band, its bins with their weights
private func melFilters(bins: Int, bands: Int, rate: Double) -> [[(bin: Int, weight: Double)]] {
    func mel(_ f: Double) -> Double { f < 1000 ? 3 * f / 200 : 15 + 27 * log(f / 1000) / log(6.4) }
    func hertz(_ m: Double) -> Double { m < 15 ? 200 * m / 3 : 1000 * exp((m - 15) * log(6.4) / 27) }
    let edges = (0..<bands + 2).map { hertz(Double($0) * mel(rate / 2) / Double(bands + 1)) }
    return (0..<bands).map { band in
        let (low, middle, high) = (edges[band], edges[band + 1], edges[band + 2])
        return (0..<bins).compactMap { bin in
            let f = Double(bin) * rate / Double(2 * (bins - 1))
            let weight = min((f - low) / (middle - low), (high - f) / (high - middle))
            return weight > 0 ? (bin, 2 * weight / (high - low)) : nil
        }
    }
}

/// Log-mel frames of sound that arrives. It is zero before its first sample.
struct LogMel {
    private let size, hop: Int, least: Double
    private let filters: [[(bin: Int, weight: Double)]], cosine: [Double]
    private var rest: [Float]
    /// size, hop: samples of a window, and between two. rate: Hz. least: of a base-10 logarithm
    init(_ size: Int, _ hop: Int, bands: Int, rate: Int, least: Double) {
        (self.size, self.hop, self.least) = (size, hop, least)
        filters = melFilters(bins: size / 2 + 1, bands: bands, rate: Double(rate))
        cosine = (0..<size).map { cos(2 * .pi * Double($0) / Double(size)) }
        rest = silence(size / 2)
    }
    /// samples [n] in [-1, 1] -> the frames [k * bands] that they complete
    mutating func feed(_ samples: [Float]) -> [Float] {
        rest += samples
        let count = rest.count < size ? 0 : (rest.count - size) / hop + 1
        defer { rest.removeFirst(count * hop) }
        return (0..<count).flatMap { frame(rest[$0 * hop..<$0 * hop + size]) }
    }
    private func frame(_ samples: ArraySlice<Float>) -> [Float] {
        let windowed = zip(samples, cosine).map { Double($0) * (0.5 - 0.5 * $1) }
        let power = (0...size / 2).map { bin in
            var (real, imaginary, turn) = (0.0, 0.0, 0)
            for value in windowed {
                real += value * cosine[turn]
                imaginary += value * cosine[(turn + 3 * (size / 4)) % size]  // the sine
                turn = (turn + bin) % size
            }
            return real * real + imaginary * imaginary
        }
        return filters.map { filter in
            let sum = filter.reduce(0) { $0 + power[$1.bin] * $1.weight }
            return Float((max(log10(max(sum, 1e-10)), least) + 4) / 4)
        }
    }
}
