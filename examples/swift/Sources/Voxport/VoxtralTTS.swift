import Foundation

private let end = 1, first = 2  // codes: the end of the speech, and the first with a sound

/// Text to speech with Voxtral-TTS.
public final class VoxtralTTS: Speaker {
    private struct Constants: Decodable {
        let dim, vocabSize, nCodebooks, semanticCodes, acousticLevels, eulerSteps, sampleRate: Int
        let bosId, beginAudioId, audioId: Int, firstFrame: String
    }
    private let constants: Constants, tokenizer: Tekken
    private var isFirst = true  // frame
    public init(_ engine: any Engine) throws {
        let c: Constants = try engine.bundle.constants(), voices = engine.bundle.manifest.voices.keys
        (constants, tokenizer) = (c, try Tekken(engine.bundle))
        try super.init(engine, voices: voices, width: c.dim, rate: c.sampleRate)
    }
    override func start(_ text: String, _ options: SpeakOptions) async throws {
        let isPlain = options.instruct == nil && options.language == "auto"
        if !isPlain { throw VoxportError("language, instruct: not for Voxtral-TTS") }
        let c = constants, standard = voices.first { $0 == "neutral_female" } ?? voices.first
        let rows = try voiceRows(options.voice ?? standard ?? ""), count = rows.count / c.dim
        let marks = ["NEXT", "REPEAT"].map { tokenizer.special["[\($0)_AUDIO_TEXT]"] ?? 0 }
        let head = [c.bosId, c.beginAudioId] + Array(repeating: c.audioId, count: count) + [marks[0]]
        ids = head + tokenizer.encode(text) + [marks[1], c.beginAudioId]
        isFirst = true
        let given = c.firstFrame == "audio_token" ? ids + [c.audioId] : ids
        var whole = try await engine.rows("embed_text", "ids", given)
        whole.replaceSubrange(2 * c.dim..<2 * c.dim + rows.count, with: rows)
        try await prefill(whole, options.seed)
    }
    override func frame() async throws -> [Int]? {
        let c = constants, barred = isFirst ? first : end  // the first frame may not be the end
        isFirst = false
        noise = (1..<c.nCodebooks).map { _ in generator.normal() }
        let semantic = argmax(outputs["semantic_logits"]!) { $0 >= barred && $0 < first + c.semanticCodes }
        if semantic == end { return nil }
        var x = noise
        for step in 0..<c.eulerSteps {
            let inputs = ["x": x, "step": [Float(step)], "condition": outputs["condition"]!]
            x = try await engine.run("acoustic_step", inputs)["next_x"]!
        }
        let levels = x.map { (min(max($0, -1), 1) + 1) / 2 * Float(c.acousticLevels - 1) }
        return [semantic] + levels.map { first + Int($0.rounded(.toNearestOrEven)) }
    }
    override func usualFrames(_ text: String) -> Double { 0.68 * Double(text.unicodeScalars.count) }
    /// A model with a small vocabulary was trained on single sentences.
    override var leastCharacters: Int { constants.vocabSize < 10_000 ? 0 : super.leastCharacters }
    override func step(_ codes: [Int]) async throws {
        try await read("decode_step", try await engine.rows("embed_codes", "codes", codes))
    }
    /// Rows [n * dim] of a voice: the tensor `embedding` of a file of safetensors
    private func voiceRows(_ name: String) throws -> [Float] {
        struct Entry: Decodable { let dataOffsets: [Int] }
        struct Header: Decodable { let embedding: Entry }
        let data = try engine.bundle.read(engine.bundle.manifest.voices[try find("voice", name, in: voices)]!)
        let size = data.prefix(8).reversed().reduce(0) { $0 << 8 | Int($1) }
        let range = try decode(Header.self, data.dropFirst(8).prefix(size)).embedding.dataOffsets
        let bytes = Data(data.dropFirst(8 + size + range[0]).prefix(range[1] - range[0]))
        return bytes.withUnsafeBytes { Array($0.bindMemory(to: Float.self)) }
    }
}
