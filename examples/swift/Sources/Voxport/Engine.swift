/// Opens the graphs of a bundle at their first call, and keeps the states of one stream.
///
/// Tensors are lists of values in row-major order, by name. Integers are floats too: a bundle has none above
/// 2^24, so they are exact. The signature of a component has their shapes and dtypes.
public protocol Engine: AnyObject {
    var bundle: ModelBundle { get }
    /// One call. It changes the states of the component's graph.
    func call(_ component: Component, _ inputs: [String: [Float]]) async throws -> [String: [Float]]
    /// Sets all states to zero.
    func reset()
}

extension Engine {
    /// Calls a component with any number of rows (axis 1): several times if its bounds ask for it.
    public func run(_ name: String, _ inputs: [String: [Float]]) async throws -> [String: [Float]] {
        let component = try bundle.component(name), signature = component.signature
        var outputs = [String: [Float]]()
        do {
            for piece in divide(signature, inputs) {
                let found = try await call(component, piece)
                for spec in signature.outputs {
                    guard let values = found[spec.name] else { throw VoxportError("no output \(spec.name)") }
                    outputs[spec.name] = (spec.hasRows ? outputs[spec.name] ?? [] : []) + values
                }
            }
        } catch {
            throw VoxportError("\(name): \(bundle.manifest.job.target) failed: \(error.localizedDescription)")
        }
        return outputs
    }
    /// Integers to rows of embeddings, one after another
    func rows(_ name: String, _ input: String, _ integers: [Int]) async throws -> [Float] {
        try await run(name, [input: integers.floats])["embeddings"]!
    }
}

/// The inputs of consecutive calls, each at the position behind the rows before
private func divide(_ signature: Signature, _ inputs: [String: [Float]]) -> [[String: [Float]]] {
    guard let first = signature.inputs.first, first.hasRows, let most = signature.dims.values.first?.last,
        let values = inputs[first.name], case let count = first.shape(values.count)[1], count > most
    else { return [inputs] }
    return stride(from: 0, to: count, by: most).map { start in
        var piece = inputs
        let size = values.count / count  // values in a row
        piece[first.name] = Array(values[start * size..<min(start + most, count) * size])
        piece["position"] = inputs["position"].map { [$0[0] + Float(start)] }
        return piece
    }
}

public func openEngine(_ bundle: ModelBundle) throws -> any Engine {
    let target = bundle.manifest.job.target
    #if canImport(CoreML)
    if target == "coreml" { return CoreMLEngine(bundle) }
    #endif
    #if canImport(CoreAI) && !(os(macOS) && arch(x86_64))
    if target == "coreai", #available(macOS 27, iOS 27, *) { return CoreAIEngine(bundle) }
    #endif
    throw VoxportError("\(bundle.folder.path): made for \(target), which this program or system cannot run")
}
