import Foundation

/// Speech to text with Voxtral-Realtime.
public final class Listener: Model {
    private struct Constants: Decodable {
        let dim, nMels, sampleRate, samplesPerToken, hopLength, windowSize: Int
        let bosId, padId, firstTextId, leftPadTokens, flushTokens: Int
        let delays: [Int], logMelLeast: Double
    }
    private struct Stream {
        var delay = 0, chunk = 1  // index into `delays`, and tokens of a call of the encoder
        var samples = 0, encoded = 0, position = 0
        var frames = [Float](), sound = [Float]()  // not encoded yet, and embeddings that are not read yet
        var tokens = [Int](), decoder = TextDecoder(), hasText = false
    }
    public let sampleRate: Int  // Hz
    private let engine: any Engine, constants: Constants, tokenizer: Tekken
    private let mostTokens, mostRows: Int  // that a call of the encoder and of prefill takes
    private let live: String  // component for one token
    private let fresh: LogMel  // has heard nothing
    private var mel: LogMel, stream = Stream(), logits = [Float]()
    private var forced: [Int]?  // fed back in place of the tokens that the model chooses
    private var trace: [String: [Float]]?  // values so far, if they are wanted
    public init(_ engine: any Engine) throws {
        let bundle = engine.bundle, c: Constants = try bundle.constants()
        (self.engine, constants, tokenizer, sampleRate) = (engine, c, try Tekken(bundle), c.sampleRate)
        mostTokens = try bundle.component("audio_encoder").signature.dims["T"]?.last ?? 1
        mostRows = try bundle.component("prefill").signature.dims["S"]?.last ?? 1
        live = (try? bundle.component("encode_chunk").name) ?? "audio_encoder"
        fresh = LogMel(c.windowSize, c.hopLength, bands: c.nMels, rate: c.sampleRate, least: c.logMelLeast)
        mel = fresh
    }
    /// delay: index into `delays`; nil is the first one for live sound, the last one for a recording.
    /// isLive: text comes with each token of 80 ms, not with the most of a call.
    public func begin(delay: Int? = nil, isLive: Bool = false) async throws {
        engine.reset()
        mel = fresh
        let standard = isLive ? 0 : constants.delays.count - 1
        stream = Stream(delay: delay ?? standard, chunk: isLive ? 1 : mostTokens)
        stream.frames = mel.feed(silence(constants.leftPadTokens * constants.samplesPerToken))
        try await encode(1, mostTokens)
    }
    /// samples: [n] in [-1, 1]. Returns the text that they complete.
    public func feed(_ samples: [Float]) async throws -> String {
        stream.samples += samples.count
        stream.frames += mel.feed(samples)
        try await encode(stream.chunk, stream.chunk)
        return try await decode()
    }
    /// The rest of the text. Nothing can be fed after it.
    public func finish() async throws -> String {
        let c = constants, size = c.samplesPerToken, rest = (size - stream.samples % size) % size
        let tokens = c.delays[stream.delay] + c.flushTokens + 1, beyond = c.windowSize / 2 - c.hopLength
        stream.frames += mel.feed(silence(rest + tokens * size + beyond))
        try await encode(1, stream.chunk)
        return try await decode() + stream.decoder.rest
    }
    /// Encodes tokens while there are `least`, at most `most` in a call
    private func encode(_ least: Int, _ most: Int) async throws {
        let size = constants.samplesPerToken / constants.hopLength * constants.nMels  // values of a token
        while stream.frames.count >= least * size {
            let count = min(most, stream.frames.count / size), component = count == 1 ? live : "audio_encoder"
            let part = Array(stream.frames.prefix(count * size)), position = [Float(stream.encoded)]
            let rows = try await engine.run(component, ["mel": part, "position": position])["embeddings"]!
            stream.frames.removeFirst(count * size)
            stream.sound += rows
            stream.encoded += count
            trace?.merge(["mel": part, "audio_embeds": rows]) { $0 + $1 }
        }
    }
    /// Runs the decoder on the embeddings so far -> the text of its tokens
    private func decode() async throws -> String {
        let c = constants, prompt = c.leftPadTokens + c.delays[stream.delay] + 1
        var text = ""
        if stream.position == 0, stream.sound.count >= prompt * c.dim {
            let ids = [c.bosId] + Array(repeating: c.padId, count: prompt - 1)
            try await step("prefill", Array(ids.prefix(mostRows)))
            for id in ids.dropFirst(mostRows) { try await step("decode_step", [id]) }
            trace?["prefill_logits"] = logits
            text += take()
        }
        while stream.position > 0, !stream.sound.isEmpty {
            let last = stream.tokens.count - 1
            try await step("decode_step", [forced?[last] ?? stream.tokens[last]])
            text += take()
        }
        return text
    }
    private func step(_ component: String, _ ids: [Int]) async throws {
        let words = try await engine.rows("embed_tokens", "ids", ids)
        let rows = zip(words, stream.sound).map { $0 + $1 }, place = [Float(stream.position)]
        let inputs = ["embeddings": rows, "position": place, "delay": [Float(stream.delay)]]
        logits = try await engine.run(component, inputs)["logits"]!
        stream.sound.removeFirst(rows.count)
        stream.position += ids.count
    }
    /// Takes the next token -> its text, without the space before the first word
    private func take() -> String {
        let token = argmax(logits)
        stream.tokens.append(token)
        if token < constants.firstTextId { return "" }
        let text = stream.decoder.append(tokenizer.bytes(token))
        let shown = stream.hasText ? text : String(text.drop(while: \.isWhitespace))
        stream.hasText = stream.hasText || !shown.isEmpty
        return shown
    }
    public func vectors() async throws -> [String: [Float]] {
        struct Request: Decodable { let recording: Data, delay: Int, tokens: [Int] }  // base64 in the file
        let request: Request = try engine.bundle.request()
        (forced, trace) = (request.tokens, [:])
        defer { (forced, trace) = (nil, nil) }
        try await begin(delay: request.delay)
        _ = try await feed(pcm(request.recording)) + finish()
        return trace!.merging(["tokens": stream.tokens.floats, "last_logits": logits]) { $1 }
    }
}
