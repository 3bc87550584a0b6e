import Foundation

/// A model of any family.
public protocol Model: AnyObject {
    /// The arrays of vectors.json, in row-major order. Its codes or tokens are fed back, not the chosen ones.
    func vectors() async throws -> [String: [Float]]
}

/// Opens the folder of a bundle.
public func openModel(_ folder: URL) throws -> any Model {
    let engine = try openEngine(try ModelBundle(folder)), family = engine.bundle.manifest.job.family
    switch family {
    case "voxtral_tts": return try VoxtralTTS(engine)
    case "qwen3_tts": return try QwenTTS(engine)
    case "voxtral_realtime": return try Listener(engine)
    default: throw VoxportError("\(folder.path): family \(family) is unknown to this program")
    }
}

func unknown(_ what: String, _ name: String, _ known: some Sequence<String>) -> VoxportError {
    VoxportError("\(what) \(name): unknown, this bundle has \(known.sorted().joined(separator: ", "))")
}
