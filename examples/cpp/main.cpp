#include <iostream>
#include "qwen3_tts.h"
#include "voxtral_realtime.h"
#include "voxtral_tts.h"

const std::string kUsage =
    "usage: voxport_runner vectors BUNDLE OUT.json | transcribe BUNDLE IN.wav | say BUNDLE TEXT OUT.wav "
    "[--voice V] [--language L] [--instruct TEXT] [--seed N]; each with [--threads N]";

// Takes an option and its value out of the words.
std::string option(std::vector<std::string>& words, const std::string& name) {
  const auto found = std::find(words.begin(), words.end(), name);
  if (found == words.end()) return "";
  if (found + 1 == words.end()) throw Error(name + ": has no value; " + kUsage);
  const std::string value = found[1];
  words.erase(found, found + 2);
  return value;
}

uint64_t number(std::vector<std::string>& words, const std::string& name) {
  const std::string text = option(words, name);
  if (text.size() < 19 && text.find_first_not_of("0123456789") == text.npos) return std::atoll(text.c_str());
  throw Error(name + " " + text + ": expected a number of at most 18 digits");
}

void write_file(const fs::path& path, const std::string& content) {
  const fs::path partial = path.string() + ".partial";  // so that no file is half written
  if (std::ofstream(partial, std::ios::binary) << content << std::flush) return fs::rename(partial, path);
  fs::remove(partial);
  throw Error(path.string() + ": cannot be written; check its folder and the free space");
}

// A WAV with samples of 16 bits, mono
std::string wav_of(const Floats& samples, size_t rate) {
  std::string bytes = "RIFF";
  const auto put = [&](int64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> 8 * i);
  };
  const int64_t size = 2 * samples.size();
  put(36 + size, 4), bytes += "WAVEfmt ", put(16, 4), put(1, 2), put(1, 2);  // PCM, one channel
  put(rate, 4), put(2 * rate, 4), put(2, 2), put(16, 2), bytes += "data", put(size, 4);
  for (const double x : samples) put(std::lrint(32767 * std::clamp(x, -1.0, 1.0)), 2);  // half to even
  return bytes;
}

Floats read_wav(const fs::path& path, size_t rate) {
  const std::string bytes = read_file(path);
  const auto get = [&](size_t at, int count) {
    size_t value = 0;
    while (count-- > 0) value = value << 8 | static_cast<unsigned char>(bytes[at + count]);
    return value;
  };
  for (size_t at = 12, size; at + 24 <= bytes.size(); at += 8 + size + size % 2) {
    const bool is_format = bytes.compare(at, 4, "fmt ") == 0;
    size = get(at + 4, 4);
    if (is_format && (get(at + 10, 2) != 1 || get(at + 12, 4) != rate || get(at + 22, 2) != 16)) break;
    if (bytes.compare(at, 4, "data") != 0) continue;
    Floats samples(std::min(size, bytes.size() - at - 8) / 2);
    for (size_t i = 0; i < samples.size(); ++i) samples[i] = int16_t(get(at + 8 + 2 * i, 2)) / 32768.0f;
    return samples;
  }
  throw Error(path.string() + ": expected a WAV, mono, 16 bits, " + std::to_string(rate) + " Hz; convert it");
}

std::unique_ptr<Speaker> open_speaker(const Bundle& bundle, Engine& engine) {
  const std::string family = bundle.job("family");
  if (family == "voxtral_tts") return std::make_unique<VoxtralTTS>(bundle, engine);
  if (family == "qwen3_tts") return std::make_unique<QwenTTS>(bundle, engine);
  throw Error(bundle.name + ": " + family + " does not speak; take a bundle of voxtral_tts or qwen3_tts");
}

int main(int count, char** arguments) try {
  std::vector<std::string> words(arguments + 1, arguments + count);
  const Manner manner{option(words, "--voice"), option(words, "--language"), option(words, "--instruct"),
                      number(words, "--seed")};
  const int threads = number(words, "--threads");
  const std::string command = words.empty() ? "" : words[0];
  if (words.size() != (command == "say" ? 4 : 3)) throw Error(kUsage);
  const Bundle bundle(words[1]);
  Engine engine(bundle, threads);
  const size_t rate = bundle.constant("sample_rate");
  const bool listens = bundle.job("family") == "voxtral_realtime";
  if (command == "vectors") {
    const Json file = Json::parse(read_file(fs::path(bundle.name) / "vectors.json"));
    const Json values = listens ? Listener(bundle, engine).vectors(file.at("request"))
                                : open_speaker(bundle, engine)->vectors(file.at("request"));
    write_file(words[2], values.dump());
  } else if (command == "say") {
    Floats samples;
    open_speaker(bundle, engine)->speak(words[2], manner, [&](const Floats& more) { append(samples, more); });
    if (samples.empty()) throw Error("text: has no word and no number; give something to speak");
    write_file(words[3], wav_of(samples, rate));
  } else if (command == "transcribe" && listens) {
    Floats samples = read_wav(words[2], rate);
    amplify(samples);
    Listener listener(bundle, engine);
    listener.begin(bundle.constant("delays").size() - 1);
    for (size_t at = 0, end; at < samples.size(); at = end) {  // a second at a time, as from a microphone
      end = std::min(at + rate, samples.size());
      std::cout << listener.feed({samples.begin() + at, samples.begin() + end}) << std::flush;
    }
    std::cout << listener.finish() << std::endl;
  } else {
    throw Error(listens ? kUsage : bundle.name + ": transcribe takes a bundle of voxtral_realtime");
  }
} catch (const std::exception& error) {
  const bool is_clear = dynamic_cast<const Error*>(&error);
  std::string text = (is_clear ? "" : "manifest.json or a file that it names: ") + std::string(error.what());
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::cerr << text << "\n";
  return 1;
}
