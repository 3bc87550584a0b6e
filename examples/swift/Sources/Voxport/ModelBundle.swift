import Foundation
#if canImport(CryptoKit)
import CryptoKit
#endif

/// A fault of a bundle or of a request, in one line.
public struct VoxportError: LocalizedError {
    public let errorDescription: String?
    public init(_ text: String) { errorDescription = text }
}

/// The part of manifest.json that a runner needs. FORMAT.md of each bundle describes it.
public struct Manifest: Decodable {
    public struct Job: Decodable { public let family, target: String, components: [Component] }
    public struct File: Decodable { public let size: Int, sha256: String }
    public let schemaVersion: Int, job: Job
    public let files: [String: File], voices: [String: String]
}

/// A callable: the function `entryPoint` of the package `file`. Components of one graph share states.
public struct Component: Decodable {
    public let name, graph, file, entryPoint: String
    public let signature: Signature
}

/// Inputs, outputs and states. `dims` are bounds [low, high] of a size that may differ from call to call.
public struct Signature: Decodable {
    public struct State: Decodable { public let name: String, shape: [Int] }
    public let inputs, outputs: [TensorSpec]
    public let states: [State], dims: [String: [Int]]
}

/// A tensor of a signature. `dtype` is float32, or int64, which packages have as int32.
public struct TensorSpec: Decodable {
    struct Size: Decodable {
        let fixed: Int?  // nil if it may differ
        init(from json: any Decoder) throws { fixed = try? json.singleValueContainer().decode(Int.self) }
    }
    public let name, dtype: String
    let shape: [Size]
    var isInteger: Bool { dtype == "int64" }
    var hasRows: Bool { shape.count > 1 && shape[1].fixed == nil }
    /// The shape of so many values
    func shape(_ count: Int) -> [Int] {
        let fixed = shape.reduce(1) { $0 * ($1.fixed ?? 1) }
        return shape.map { $0.fixed ?? count / fixed }
    }
}

extension [Int] { var floats: [Float] { map { Float($0) } } }

private struct VectorFile<Request: Decodable>: Decodable { let request: Request }
private struct ManifestOf<Constants: Decodable>: Decodable {
    struct Job: Decodable { let constants: Constants }
    let job: Job
}

/// A folder with manifest.json. Sizes and hashes of its files are checked when they are read.
public final class ModelBundle {
    public let folder: URL
    public let manifest: Manifest
    private let text: Data
    public init(_ folder: URL) throws {
        self.folder = folder
        do {
            text = try Data(contentsOf: folder.appendingPathComponent("manifest.json"))
            manifest = try decode(Manifest.self, text)
            if manifest.schemaVersion != 3 { throw VoxportError("version \(manifest.schemaVersion), not 3") }
        } catch {
            throw VoxportError("\(folder.path): \(error.localizedDescription); export it again")
        }
    }
    /// The family's numbers of the manifest
    func constants<Family: Decodable>() throws -> Family { try decode(ManifestOf.self, text).job.constants }
    /// What vectors.json asks for
    func request<Request: Decodable>() throws -> Request {
        try decode(VectorFile.self, Data(contentsOf: folder.appendingPathComponent("vectors.json"))).request
    }
    public func component(_ name: String) throws -> Component {
        if let found = manifest.job.components.first(where: { $0.name == name }) { return found }
        throw VoxportError("\(folder.path): no component \(name); export it again")
    }
    public func read(_ path: String) throws -> Data {
        guard let entry = manifest.files[path], !path.contains(".."),
            let data = try? Data(contentsOf: folder.appendingPathComponent(path), options: .mappedIfSafe)
        else { throw VoxportError("\(path): missing; copy the bundle again") }
        var hash = entry.sha256
        #if canImport(CryptoKit)
        hash = SHA256.hash(data: data).map { String(format: "%02x", $0) }.joined()
        #endif
        if data.count == entry.size, hash == entry.sha256 { return data }
        throw VoxportError("\(path): damaged; copy the bundle again")
    }
    /// The folder of a package. Its files are checked, because a runtime may abort on a damaged one.
    public func package(_ path: String) throws -> URL {
        let files = manifest.files.keys.filter { $0.hasPrefix("\(path)/") }
        for file in files.isEmpty ? [path] : files.sorted() { _ = try read(file) }
        return folder.appendingPathComponent(path)
    }
}

func decode<Value: Decodable>(_ type: Value.Type, _ json: Data) throws -> Value {
    let decoder = JSONDecoder()
    decoder.keyDecodingStrategy = .convertFromSnakeCase
    return try decoder.decode(type, from: json)
}

public protocol Model: AnyObject {
    /// The arrays of vectors.json, in row-major order. Its codes or tokens are fed back, not the chosen ones.
    func vectors() async throws -> [String: [Float]]
}

public func openModel(_ folder: URL) throws -> any Model {
    let engine = try openEngine(try ModelBundle(folder)), family = engine.bundle.manifest.job.family
    switch family {
    case "voxtral_tts": return try VoxtralTTS(engine)
    case "qwen3_tts": return try QwenTTS(engine)
    case "voxtral_realtime": return try Listener(engine)
    default: throw VoxportError("\(folder.path): family \(family) is unknown to this program")
    }
}

/// The one of `known` that equals `name`, in any case. what: what is sought, for the error
func find(_ what: String, _ name: String, in known: some Collection<String>) throws -> String {
    let found = known.first { $0 == name } ?? known.first { $0.lowercased() == name.lowercased() }
    if let found { return found }
    let names = known.isEmpty ? "none" : known.sorted().joined(separator: ", ")
    throw VoxportError("\(what) \(name): unknown, this bundle has \(names)")
}
