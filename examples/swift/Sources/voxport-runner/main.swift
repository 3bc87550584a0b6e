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
        try JSONEncoder().encode(try await model.vectors()).write(to: file)
    case ("say", let speaker as Speaker):
        var samples = [Float]()
        try await speaker.speak(words[2], options) { samples += $0 }
        try writeWav(samples, rate: speaker.sampleRate).write(to: file)
    case ("transcribe", let listener as Listener):
        let sound = try readWav(Data(contentsOf: file), rate: listener.sampleRate), factor = gain(sound)
        try await listener.begin()
        print(try await listener.feed(sound.map { $0 * factor }) + listener.finish())
    default: throw VoxportError("\(words[1]): a model of this family cannot \(command)")
    }
}

do { try await run(Array(CommandLine.arguments.dropFirst())) } catch {
    FileHandle.standardError.write(Data("\(error.localizedDescription)\n".utf8))
    exit(1)
}
