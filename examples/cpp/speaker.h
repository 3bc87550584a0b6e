// What the families that speak have in common.
#pragma once
#include "engine.h"
#include "random.h"
#include "tokenizer.h"

// How to speak. What is empty is left to the model.
struct Manner {
  std::string voice, language, instruct;
  uint64_t seed = 0;
};

// Parts of a text that are spoken one after another. Sentences below `least` characters are joined, at the
// end of a paragraph those below 20.
inline std::vector<std::string> sentences(const std::string& text, size_t least) {
  // up to a mark before a space, a mark of Chinese or Japanese, or the end
  const char* sentence = R"((?=\S).*?([.!?\x{2026}](?=\s)|[\x{3002}\x{ff01}\x{ff1f}]|(?=\s*\z)))";
  std::string plain;  // a line for each paragraph
  for (const std::string& each : matches(R"(\S+|\s+)", text)) {
    const bool is_end = std::count(each.begin(), each.end(), '\n') > 1;
    plain += !matches(R"(\S)", each).empty() ? each : is_end ? "\n" : " ";
  }
  std::vector<std::string> parts;
  for (const std::string& paragraph : matches("[^\n]+", plain)) {
    size_t fewest = std::min<size_t>(least, 20);
    for (std::string& each : matches(sentence, paragraph)) {
      if (!matches(R"([\p{L}\p{N}]\z)", each).empty()) each += ".";
      if (!parts.empty() && matches("(?s).", parts.back()).size() < fewest) parts.back() += " " + each;
      else parts.push_back(each);
      fewest = least;
    }
  }
  return parts;
}

class Speaker {
 public:
  Speaker(const Bundle& bundle, Engine& engine) : bundle_(bundle), engine_(engine) {}
  virtual ~Speaker() = default;

  // `play` takes the samples of a few frames at a time.
  void speak(const std::string& text, const Manner& manner, const std::function<void(const Floats&)>& play) {
    bool is_next = false;
    for (const std::string& part : sentences(text, least_characters())) {
      if (matches(R"([\p{L}\p{N}])", part).empty()) continue;
      if (std::exchange(is_next, true)) play(Floats(number("sample_rate") / 5));  // a pause of 0.2 s
      start(part, manner);
      std::vector<Codes> waiting;
      const double usual = usual_frames(part);  // a model may miss the end of a text
      const int words = matches(R"([\p{N}\p{S}\p{Lu}])", part).size();
      int limit = std::ceil(3 * usual) + std::min<int>(40, 10 + 4 * words + std::lrint(usual));
      for (Codes codes; limit-- > 0 && !(codes = frame()).empty();) {
        waiting.push_back(codes);
        if (waiting.size() == kChunk) play(decode(std::exchange(waiting, {})));
        if (position_ == rows_) break;
        step(codes);
      }
      if (!waiting.empty()) play(decode(waiting));
    }
  }

  // The arrays of vectors.json for its request
  Json vectors(const Json& request) {
    const auto text = [&](const char* key) { return request.value(key, ""); };
    const std::string voice = text("voice") + text("speaker");  // a family has one of the two
    start(text("text"), {voice, text("language"), text("instruct"), request.at("seed")});
    Outputs values{{"prefill", last_}};
    std::vector<Codes> codes;
    for (const Codes given : request.at("codes")) {
      codes.push_back(frame());
      append(values["noise"], noise_);
      for (const auto& output : outputs_) append(values[output.first], output.second);
      append(values["samples"], decode({given}));
      step(given);
    }
    Json found = values;
    found["ids"] = ids_;
    found["codes"] = join(codes);
    return found;
  }

 protected:
  virtual void start(const std::string& text, const Manner& manner) = 0;  // reads the prompt
  virtual double usual_frames(const std::string& text) const = 0;
  virtual size_t least_characters() const { return 60; }
  virtual Codes frame() = 0;                                              // chooses the next frame
  virtual void step(const Codes& codes) = 0;                              // reads a frame
  int64_t number(const char* constant) const { return bundle_.constant(constant); }

  void read(const std::string& component, const Floats& rows) {
    if (component == "prefill") position_ = frames_ = 0;
    const int64_t dim = number("dim"), count = rows.size() / dim;
    if (position_ + count > rows_) throw Error("text: is too long; divide it into sentences");
    outputs_ = engine_.run(component, {{"embeddings", {rows, {1, -1, dim}}}, {"position", Ids{position_}}});
    Floats& hidden = outputs_["hidden"];  // of its rows the last one is kept
    hidden.erase(hidden.begin(), hidden.end() - std::min<int64_t>(dim, hidden.size()));
    position_ += count;
    last_ = rows;
  }

  // The samples of the next frames. How frames are divided into calls changes roundings only.
  Floats decode(const std::vector<Codes>& frames) {
    const int64_t count = frames.size();
    const Inputs inputs{{"codes", {join(frames), {1, count, -1}}}, {"position", Ids{frames_}}};
    frames_ += count;
    return engine_.run("codec_step", inputs).at("audio");
  }

  const Bundle& bundle_;
  Engine& engine_;
  Ids ids_;       // the ids of `vectors`: the text, or the whole prompt
  Floats noise_;  // all that was drawn for the last frame
  Generator generator_{0};
  Outputs outputs_;

 private:
  static constexpr size_t kChunk = 5;  // frames of a call of the codec
  Floats last_;                        // the rows of the last call of `read`
  int64_t position_ = 0, frames_ = 0;  // rows that are read, frames that are decoded
  const int64_t rows_ = bundle_.size("/prefill/signature/states/0/shape/2");  // rows of the caches
};
