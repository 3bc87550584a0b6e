import Foundation

private let leastFrames = 2, small = "0b6"  // the size whose CustomVoice model follows no instruction

/// Text to speech with Qwen3-TTS: speakers of the model, and voices by description.
public final class QwenTTS: Speaker {
    private struct Constants: Decodable {
        let kind, size: String
        let dim, vocabSize, nCodebooks, firstCodes, otherCodes, sampleRate: Int
        let assistantId, imStartId, imEndId, ttsPadId, ttsBosId, ttsEosId, codecBosId, codecPadId: Int
        let codecEosTokenId, codecThinkId, codecNothinkId, codecThinkBosId, codecThinkEosId: Int
        let speakers, codecLanguageId: [String: Int]
        let dialects: [String: String], samplingDefaults: Sampling
        struct Sampling: Decodable {
            let temperature, topP, repetitionPenalty, othersTemperature, othersTopP: Double
            let topK, othersTopK: Int
        }
    }
    private let constants: Constants, tokenizer: QwenTokenizer
    private var earlier = [Int]()  // codes 0 so far
    private var padding = [Float]()  // the row of tts_pad
    public init(_ engine: any Engine) throws {
        let c: Constants = try engine.bundle.constants()
        if c.kind == "base" { throw VoxportError("a Base model clones voices; this program does not") }
        (constants, tokenizer) = (c, try QwenTokenizer(engine.bundle))
        try super.init(engine, voices: c.speakers.keys, width: c.dim, rate: c.sampleRate)
    }
    override func start(_ text: String, _ options: SpeakOptions) async throws {
        let c = constants, newline = tokenizer.encode("\n")
        let controls = try controls(options)
        (ids, earlier) = (tokenizer.encode(text), [])
        var head = [c.imStartId, c.assistantId] + newline
        if let instruct = options.instruct, !instruct.isEmpty, c.kind != "custom_voice" || c.size != small {
            let asked = tokenizer.encode("user\n") + tokenizer.encode(instruct)
            head = [c.imStartId] + asked + [c.imEndId] + newline + head
        }
        padding = try await engine.rows("embed_text", "ids", [c.ttsPadId])
        let others = Array(repeating: -1, count: c.nCodebooks - 1)  // codes below 0 add nothing
        let codes = try await engine.rows("embed_codes", "codes", controls.flatMap { [$0] + others })
        let pad = Array(codes.suffix(2 * c.dim).prefix(c.dim)), bos = Array(codes.suffix(c.dim))
        let beside = Array(repeating: c.ttsPadId, count: controls.count - 2) + [c.ttsBosId]
        var rows = try await engine.rows("embed_text", "ids", head)
        rows += sum(try await engine.rows("embed_text", "ids", beside), codes)
        rows += sum(try await engine.rows("embed_text", "ids", ids + [c.ttsEosId]), pad)
        try await prefill(rows + sum(bos, padding), options.seed)
    }
    /// Ids of the talker's vocabulary that say who speaks, and in which language
    private func controls(_ options: SpeakOptions) throws -> [Int] {
        let c = constants, asked = options.voice ?? voices.first
        let voice = try asked.map { try find("voice", $0, in: voices) }
        let language = try find("language", options.language, in: c.codecLanguageId.keys + ["auto"])
        let dialect = ["auto", "chinese"].contains(language) ? voice.flatMap { c.dialects[$0] } : nil
        let id = c.codecLanguageId[dialect ?? language], speaker = voice.flatMap { c.speakers[$0] }
        let ids = [id == nil ? c.codecNothinkId : c.codecThinkId, c.codecThinkBosId, id, c.codecThinkEosId]
        return (ids + [speaker, c.codecPadId, c.codecBosId]).compactMap { $0 }
    }
    override func frame() async throws -> [Int]? {
        let c = constants, s = c.samplingDefaults, books = c.nCodebooks - 1, draws = s.othersTemperature > 0
        noise = (0..<c.vocabSize + books * c.otherCodes).map { _ in generator.gumbel() }
        let code = firstCode(outputs["logits"]!)
        if code == c.codecEosTokenId { return nil }
        earlier.append(code)
        let others = noise.dropFirst(c.vocabSize).map { draws ? $0 : 0 }
        let topK = s.othersTopK > 0 ? min(s.othersTopK, c.otherCodes) : c.otherCodes
        return try await engine.run("code_predictor", [
            "hidden": outputs["hidden"]!, "codes": [Float(code)] + Array(repeating: -1, count: books),
            "noise": others, "temperature": [draws ? Float(s.othersTemperature) : 1],
            "top_k": [Float(topK)], "top_p": [Float(s.othersTopP)],
        ])["chosen"]!.map { Int($0) }
    }
    private func firstCode(_ logits: [Float]) -> Int {
        let c = constants, s = c.samplingDefaults, penalty = s.repetitionPenalty
        let mayEnd = earlier.count >= leastFrames
        func isAllowed(_ id: Int) -> Bool { id < c.firstCodes || (id == c.codecEosTokenId && mayEnd) }
        var scores = logits.map { Double($0) }
        for id in Set(earlier) { scores[id] = scores[id] > 0 ? scores[id] / penalty : scores[id] * penalty }
        if s.temperature == 0 { return argmax(scores, where: isAllowed) }
        let order = scores.indices.filter(isAllowed).sorted { (scores[$1], $0) < (scores[$0], $1) }
        let scaled = scores.map { ($0 - scores[order[0]]) / s.temperature }
        let least = scaled[order[(s.topK > 0 ? min(s.topK, order.count) : order.count) - 1]]
        let kept = order.filter { scaled[$0] >= least }, total = kept.reduce(0) { $0 + exp(scaled[$1]) }
        var before = 0.0, nucleus = Set<Int>()  // before: probability of the ids in front, times the total
        for id in kept where before < s.topP * total {
            nucleus.insert(id)
            before += exp(scaled[id])
        }
        return argmax(zip(scaled, noise).map { $0 + Double($1) }) { nucleus.contains($0) }
    }
    override func usualFrames(_ text: String) -> Double {
        let letters = text.unicodeScalars, wide = letters.filter { $0.value >= 0x3000 }.count
        return 2.8 * Double(wide) + 0.83 * Double(letters.count - wide)
    }
    override func step(_ codes: [Int]) async throws {
        try await read("decode_step", sum(try await engine.rows("embed_codes", "codes", codes), padding))
    }
    /// Rows plus the first of other rows. A single row is added to each.
    private func sum(_ rows: [Float], _ others: [Float]) -> [Float] {
        rows.enumerated().map { $1 + others[$0 % others.count] }
    }
}
