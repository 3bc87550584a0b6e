#if canImport(CoreML)
import CoreML
import Foundation

/// Core ML. Packages are compiled for this machine at their first call; an app would keep the results.
public final class CoreMLEngine: Engine {
    public let bundle: ModelBundle
    private let units: MLComputeUnits
    private var folders = [String: URL]()  // compiled packages
    private var models = [String: MLModel]()  // by component
    private var states = [String: MLState]()  // by graph, whose functions share them
    /// The graphs are laid out for the GPU.
    public init(_ bundle: ModelBundle, units: MLComputeUnits = .cpuAndGPU) {
        (self.bundle, self.units) = (bundle, units)
    }
    deinit { folders.values.forEach { try? FileManager.default.removeItem(at: $0) } }
    public func reset() { states = [:] }
    public func call(_ component: Component, _ inputs: [String: [Float]]) async throws -> [String: [Float]] {
        try predict(component, try await model(component), inputs)
    }
    private func model(_ component: Component) async throws -> MLModel {
        if let model = models[component.name] { return model }
        if folders[component.file] == nil {
            folders[component.file] = try await MLModel.compileModel(at: try bundle.package(component.file))
        }
        let configuration = MLModelConfiguration()
        configuration.computeUnits = units
        configuration.functionName = component.entryPoint
        let model = try await MLModel.load(contentsOf: folders[component.file]!, configuration: configuration)
        models[component.name] = model
        return model
    }
    /// Not async: an async function would get the asynchronous methods of the same names.
    private func predict(
        _ component: Component, _ model: MLModel, _ inputs: [String: [Float]]
    ) throws -> [String: [Float]] {
        var features = [String: Any](), outputs = [String: [Float]]()
        let signature = component.signature
        for spec in signature.inputs { features[spec.name] = inputs[spec.name].map { feature($0, spec) } }
        let given = try MLDictionaryFeatureProvider(dictionary: features), results: any MLFeatureProvider
        if signature.states.isEmpty {
            results = try model.prediction(from: given)
        } else {
            let state = states[component.graph] ?? model.makeState()
            states[component.graph] = state
            results = try model.prediction(from: given, using: state)
        }
        for spec in signature.outputs {
            let value = results.featureValue(for: spec.name)
            let integers = spec.isInteger ? value?.shapedArrayValue(of: Int32.self) : nil
            let floats = spec.isInteger ? nil : value?.shapedArrayValue(of: Float.self)
            outputs[spec.name] = integers?.scalars.map { Float($0) } ?? floats?.scalars
        }
        return outputs
    }
    private func feature(_ values: [Float], _ spec: TensorSpec) -> MLFeatureValue {
        let shape = spec.shape(values.count)
        guard spec.isInteger else { return MLFeatureValue(shapedArray: .init(scalars: values, shape: shape)) }
        return MLFeatureValue(shapedArray: MLShapedArray(scalars: values.map { Int32($0) }, shape: shape))
    }
}
#endif
