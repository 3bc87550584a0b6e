import Foundation

/// How to speak. nil stands for the bundle's default. All but voice and seed are for Qwen3-TTS.
public struct SpeakOptions {
    public var voice, instruct: String?, language = "auto", seed: UInt64 = 0
    public init() {}
}

/// A model that speaks. Each family has its own `start`, which reads a sentence, `frame`, which returns the
/// codes of the next frame, or nil at the end of the speech, and `step`, which reads the codes of a frame.
public class Speaker: Model {
    public let voices: [String]
    public let sampleRate: Int  // Hz
    let engine: any Engine
    private let width, capacity: Int  // values in a row, and rows in the caches
    private let pace: Double  // frames of usual speech for a character
    private var position = 0, frames = 0  // rows read, and frames decoded to samples
    private var prompt = [Float]()  // rows [n * width]
    private(set) var outputs = [String: [Float]]()  // for the last row
    var ids = [Int]()  // prompt or text
    var noise = [Float]()  // what the last frame drew
    var generator = Generator(seed: 0)
    init(_ engine: any Engine, voices: some Sequence<String>, width: Int, rate: Int, pace: Double) throws {
        (self.engine, self.voices, self.pace) = (engine, voices.sorted(), pace)
        (self.width, sampleRate) = (width, rate)
        capacity = try engine.bundle.component("prefill").signature.states.first?.shape[2] ?? 0
    }
    func start(_ text: String, _ options: SpeakOptions) async throws { fatalError("a family has it") }
    func frame() async throws -> [Int]? { fatalError("a family has it") }
    func step(_ codes: [Int]) async throws { fatalError("a family has it") }
    /// Reads the rows [n * width] of a new utterance
    final func prefill(_ rows: [Float], _ seed: UInt64) async throws {
        engine.reset()
        (position, frames, prompt, generator) = (0, 0, rows, Generator(seed: seed))
        try await read("prefill", rows)
    }
    final func read(_ component: String, _ rows: [Float]) async throws {
        let count = rows.count / width
        guard position + count <= capacity else { throw VoxportError("the text is too long for the caches") }
        outputs = try await engine.run(component, ["embeddings": rows, "position": [Float(position)]])
        outputs["hidden"] = outputs["hidden"]?.suffix(width)
        position += count
    }
    /// The samples of the next frames. How frames are divided into calls changes roundings only.
    private func decode(_ codes: [[Int]]) async throws -> [Float] {
        let inputs = ["codes": codes.flatMap { $0.floats }, "position": [Float(frames)]]
        frames += codes.count
        return try await engine.run("codec_step", inputs)["audio"]!
    }
    /// `play` takes samples [n] in [-1, 1], those of `chunk` frames at a time.
    public final func speak(
        _ text: String, _ options: SpeakOptions, chunk: Int = 5, play: ([Float]) throws -> Void
    ) async throws {
        for sentence in sentences(text) {
            try await start(sentence, options)
            let limit = Int((3 * pace * Double(sentence.unicodeScalars.count)).rounded(.up)) + 50
            var waiting = [[Int]]()
            while waiting.count + frames < limit, let codes = try await frame() {
                waiting.append(codes)
                if waiting.count == chunk {
                    try play(try await decode(waiting))
                    waiting = []
                }
                if position >= capacity { break }
                try await step(codes)
            }
            if !waiting.isEmpty { try play(try await decode(waiting)) }
        }
    }
    public final func vectors() async throws -> [String: [Float]] {
        let request: Request = try engine.bundle.request()
        var options = SpeakOptions()
        (options.voice, options.language) = (request.voice ?? request.speaker, request.language ?? "auto")
        (options.instruct, options.seed) = (request.instruct, request.seed ?? 0)
        try await start(request.text, options)
        var values = ["ids": ids.floats, "prefill": prompt]
        for given in request.codes {
            values.merge(outputs) { $0 + $1 }
            values["codes", default: []] += (try await frame() ?? []).floats
            values["noise", default: []] += noise
            values["samples", default: []] += try await decode([given])
            try await step(given)
        }
        return values
    }
    private struct Request: Decodable {
        let text: String, voice, speaker, language, instruct: String?, seed: UInt64?, codes: [[Int]]
    }
}

/// The first index of the largest value
func argmax<Value: Comparable>(_ values: [Value], where isAllowed: (Int) -> Bool = { _ in true }) -> Int {
    values.indices.filter(isAllowed).max { values[$0] < values[$1] } ?? 0
}

private let short = 60  // characters; shorter sentences are spoken with the next one
private let boundary = try! NSRegularExpression(pattern: #"(?<=[.!?…])\s+|(?<=[。！？])\s*|\n+"#)

func sentences(_ text: String) -> [String] {
    let whole = text.trimmingCharacters(in: .whitespacesAndNewlines)
    let all = NSRange(location: 0, length: whole.utf16.count)
    let lines = boundary.stringByReplacingMatches(in: whole, range: all, withTemplate: "\n")
    var parts = [String]()
    for sentence in lines.split(whereSeparator: \.isNewline) {
        let joins = parts.last.map { $0.unicodeScalars.count < short } ?? false
        parts.append(joins ? parts.removeLast() + " " + sentence : String(sentence))
    }
    return parts.filter { $0.contains { $0.isLetter || $0.isNumber } }
}
