import Foundation

/// NumPy's default_rng(seed): PCG64 and the ziggurats of its float32 values, so that codes are voxport's.
struct Generator {
    private var state, increment: UInt128
    private var half: UInt32?  // the upper half of an output, which follows the lower one
    init(seed: UInt64) {
        var constant: UInt32 = 0x43b0_d7e5
        func mix(_ value: UInt32) -> UInt32 { value ^ value >> 16 }
        func hash(_ value: UInt32, _ factor: UInt32) -> UInt32 {
            let changed = value ^ constant
            constant &*= factor
            return mix(changed &* constant)
        }
        var pool = [UInt32(truncatingIfNeeded: seed), UInt32(seed >> 32), 0, 0].map { hash($0, 0x931e_8875) }
        for (from, to) in (0..<16).map({ ($0 / 4, $0 % 4) }) where from != to {
            pool[to] = mix(0xca01_f9dd &* pool[to] &- 0x4973_f715 &* hash(pool[from], 0x931e_8875))
        }
        constant = 0x8b51_f9dd
        let words = (0..<8).map { UInt128(hash(pool[$0 % 4], 0x58f3_8ded)) }
        let numbers = [0, 2, 4, 6].map { words[$0] | words[$0 + 1] << 32 }
        increment = (numbers[2] << 64 | numbers[3]) << 1 | 1
        state = increment &+ (numbers[0] << 64 | numbers[1])
        _ = bits()
        half = nil
    }
    private mutating func bits() -> UInt32 {
        if let kept = half.take() { return kept }
        state = state &* (0x2360_ed05_1fc6_5da4 << 64 | 0x4385_df64_9fcc_f645) &+ increment
        let word = UInt64(truncatingIfNeeded: state >> 64 ^ state), turns = UInt64(state >> 122)
        let output = word &>> turns | word &<< (64 &- turns)
        half = UInt32(output >> 32)
        return UInt32(truncatingIfNeeded: output)
    }
    private mutating func uniform() -> Float { Float(bits() >> 8) / 0x1p24 }
    /// The height of a random point between the edges of a layer
    private mutating func height(_ table: Ziggurat, _ layer: Int) -> Float {
        (table.heights[layer - 1] - table.heights[layer]) * uniform() + table.heights[layer]
    }
    /// A standard normal value
    mutating func normal() -> Float {
        while true {
            let bits = bits(), layer = Int(bits & 255), integer = bits >> 9 & 0x7f_ffff
            let x = (bits & 256 == 0 ? 1 : -1) * Float(integer) * normals.widths[layer]
            if Double(integer) < normals.integers[layer] { return x }
            if layer > 0, Double(height(normals, layer)) < exp(-0.5 * Double(x) * Double(x)) { return x }
            while layer == 0 {  // the tail
                let beyond = -1 / normals.radius * log1p(-uniform()), y = -log1p(-uniform())
                let sign: Float = integer >> 8 & 1 == 0 ? 1 : -1
                if y + y > beyond * beyond { return sign * (normals.radius + beyond) }
            }
        }
    }
    /// A value of the Gumbel distribution
    mutating func gumbel() -> Float { Float(-log(Double(max(exponential(), .leastNormalMagnitude)))) }
    private mutating func exponential() -> Float {
        while true {
            let bits = bits() >> 1, layer = Int(bits & 255), integer = bits >> 8
            let x = Float(integer) * exponentials.widths[layer]
            if Double(integer) < exponentials.integers[layer] { return x }
            if layer == 0 { return exponentials.radius - log1p(-uniform()) }
            if height(exponentials, layer) < exp(-x) { return x }
        }
    }
}

/// Tables of 256 layers with one area under a density that falls from 1, for integers of 23 bits
private struct Ziggurat {
    let radius: Float
    var integers = [Double](repeating: 0, count: 256)
    var heights, widths: [Float]
    init(_ radius: Double, _ area: Double, _ density: (Double) -> Double, inverse: (Double) -> Double) {
        var edges = [Double](repeating: radius, count: 256)
        for i in (1...254).reversed() {
            edges[i] = inverse(density(edges[i + 1]) + area / edges[i + 1])
            integers[i + 1] = (edges[i] / edges[i + 1] * 0x1p23).rounded()
        }
        edges[0] = area / density(radius)  // width of the layer that has the tail
        integers[0] = (radius / edges[0] * 0x1p23).rounded()
        (heights, widths) = (edges.map { Float(density($0)) }, edges.map { Float($0 / 0x1p23) })
        (self.radius, heights[0]) = (Float(radius), 1)
    }
}

private let normals = Ziggurat(
    3.6541528853610088, 0.00492867323399, { exp(-0.5 * $0 * $0) }, inverse: { sqrt(-2 * log($0)) })
private let exponentials = {
    var table = Ziggurat(7.69711747013105, 0.0039496598225815572, { exp(-$0) }, inverse: { -log($0) })
    table.widths[226] = table.widths[226].nextUp  // as in NumPy's table
    return table
}()
