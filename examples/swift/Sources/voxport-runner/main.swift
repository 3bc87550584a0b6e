import Foundation
import Voxport

let usage = "voxport-runner vectors BUNDLE OUT.json | transcribe BUNDLE IN.wav"
    + " | say BUNDLE TEXT OUT.wav [--voice V] [--language L] [--instruct T] [--seed N]"

func run(_ arguments: [String]) async throws {
    var words = arguments, options = SpeakOptions()
    func option(_ name: String) -> String? {
        guard let at = words.firstIndex(of: name), at + 1 < words.count else { return nil }
        defer { words.removeSubrange(at...at + 1) }
        return words[at + 1]
    }
    (options.voice, options.instruct) = (option("--voice"), option("--instruct"))
    options.language = option("--language") ?? "auto"
    let seed = UInt64(option("--seed") ?? "0"), command = words.first ?? ""
    guard let seed, words.count == ["vectors": 3, "say": 4, "transcribe": 3][command]
    else { throw VoxportError(usage) }
    options.seed = seed
    let model = try openModel(URL(fileURLWithPath: words[1])), file = URL(fileURLWithPath: words.last!)
    switch (command, model) {
    case ("vectors", _):
        try JSONEncoder().encode(try await model.vectors()).write(to: file, options: .atomic)
    case ("say", let speaker as Speaker):
        var samples = [Float]()
        try await speaker.speak(words[2], options) { samples += $0 }
        if samples.isEmpty { throw VoxportError("text: has no word and no number; give something to speak") }
        try writeWav(samples, rate: speaker.sampleRate).write(to: file, options: .atomic)
    case ("transcribe", let listener as Listener):
        let rate = listener.sampleRate, sound = amplify(try readWav(Data(contentsOf: file), rate: rate))
        try await listener.begin()
        for start in stride(from: 0, to: sound.count, by: rate) {  // a second at a time, as from a microphone
            let part = sound[start..<min(start + rate, sound.count)]
            print(try await listener.feed(Array(part)), terminator: "")
            fflush(stdout)
        }
        print(try await listener.finish())
    default: throw VoxportError("\(words[1]): a model of this family cannot \(command)")
    }
}

do { try await run(Array(CommandLine.arguments.dropFirst())) } catch {
    FileHandle.standardError.write(Data("\(error.localizedDescription)\n".utf8))
    exit(1)
}
