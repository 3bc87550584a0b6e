#if canImport(CoreAI) && !(os(macOS) && arch(x86_64))
import CoreAI
import Foundation

/// Core AI. Assets are specialised for this machine at their first call; the system keeps the results.
@available(macOS 27, iOS 27, *)
public final class CoreAIEngine: Engine {
    public let bundle: ModelBundle
    private let options: SpecializationOptions
    private var models = [String: AIModel]()  // by asset
    private var functions = [String: InferenceFunction]()  // by component
    private var states = [String: [String: NDArray]]()  // by graph and name; its functions share them
    /// By public reports, the GPU suits w8g32 and w4, and the Neural Engine wants fixed sizes.
    public init(_ bundle: ModelBundle, prefers unit: ComputeUnitKind = .gpu) {
        (self.bundle, options) = (bundle, SpecializationOptions(preferredComputeUnitKind: unit))
    }
    public func reset() { states = [:] }
    public func call(_ component: Component, _ inputs: [String: [Float]]) async throws -> [String: [Float]] {
        let function = try await function(component)
        var given = [String: NDArray](), outputs = [String: [Float]]()
        for spec in component.signature.inputs {
            guard let values = inputs[spec.name] else { continue }
            given[spec.name] = array(values, spec.shape(values.count), spec.isInteger ? .int32 : .float32)
        }
        var arrays = try states.removeValue(forKey: component.graph) ?? zeros(component, function)
        defer { states[component.graph] = arrays }
        var results = try await run(function, given, &arrays, .init())
        for spec in component.signature.outputs {
            guard let array = results.remove(spec.name)?.ndArray else { continue }
            let integers: ((Int32) -> Float)? = spec.isInteger ? { Float($0) } : nil
            outputs[spec.name] = integers.map { values(array, $0) } ?? values(array) { $0 as Float }
        }
        return outputs
    }
    private func function(_ component: Component) async throws -> InferenceFunction {
        if let function = functions[component.name] { return function }
        if models[component.file] == nil {
            let asset = try bundle.package(component.file)
            models[component.file] = try await AIModel(contentsOf: asset, options: options)
        }
        let function = try models[component.file]!.loadFunction(named: component.entryPoint)
        functions[component.name] = function
        guard let function else { throw VoxportError("no function \(component.entryPoint)") }
        return function
    }
    /// Memory that is not cleared may hold NaN, which shows through a mask.
    private func zeros(_ component: Component, _ function: InferenceFunction) throws -> [String: NDArray] {
        try component.signature.states.reduce(into: [:]) { arrays, state in
            let name = "\(component.graph)_\(state.name)"
            guard case .ndArray(let descriptor) = function.descriptor.stateDescriptor(of: name) else {
                throw VoxportError("no state \(name)")
            }
            let zeros = [Float](repeating: 0, count: state.shape.reduce(1, *))
            arrays[name] = array(zeros, state.shape, descriptor.scalarType)
        }
    }
    /// Adds a view of each array to `views`, then runs the function. A view may not outlive the scope that
    /// has its array, so each array has a call of this method.
    private func run(
        _ function: InferenceFunction, _ inputs: [String: NDArray], _ arrays: inout [String: NDArray],
        _ views: consuming InferenceFunction.MutableViews
    ) async throws -> InferenceFunction.Outputs {
        guard var state = arrays.popFirst() else {
            return try await function.run(inputs: inputs, states: views)
        }
        defer { arrays[state.key] = state.value }
        views.insert(&state.value, for: state.key)
        return try await run(function, inputs, &arrays, views)
    }
    private func array(_ values: [Float], _ shape: [Int], _ type: NDArray.ScalarType) -> NDArray {
        switch type {
        case .int32: NDArray(scalars: values.map { Int32($0) }, shape: shape)
        case .float16: NDArray(scalars: values.map { Float16($0) }, shape: shape)
        default: NDArray(scalars: values, shape: shape)
        }
    }
    /// Values in row-major order. In memory, rows may be padded.
    private func values<Item: BitwiseCopyable>(_ array: NDArray, _ convert: (Item) -> Float) -> [Float] {
        array.view(as: Item.self).withUnsafePointer { first, shape, strides in
            var offsets = [0]
            for axis in 0..<shape.count {
                let (size, stride) = (shape[axis], strides[axis])
                offsets = offsets.flatMap { offset in (0..<size).map { offset + $0 * stride } }
            }
            return offsets.map { convert(first[$0]) }
        }
    }
}
#endif
