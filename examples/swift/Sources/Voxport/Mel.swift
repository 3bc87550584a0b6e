import Foundation

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
    private let filters: [[(bin: Int, weight: Double)]]
    private let cosine: [Double]
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
    /// The frames that reach beyond the last sample
    mutating func finish() -> [Float] { feed(silence(max(0, size / 2 - hop))) }
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
