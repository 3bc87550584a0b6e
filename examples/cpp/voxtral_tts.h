// Text to speech with Voxtral-TTS.
#pragma once
#include "speaker.h"

class VoxtralTTS : public Speaker {
 public:
  using Speaker::Speaker;

 private:
  void start(const std::string& text, const Manner& manner) override {
    if (!(manner.language + manner.instruct).empty()) throw Error("language, instruct: not for Voxtral-TTS");
    const Floats voice = voice_rows(manner.voice);
    const int64_t dim = number("dim"), begin_audio = number("begin_audio_id");
    const Ids audio(voice.size() / dim, number("audio_id"));
    ids_ = join({{number("bos_id"), begin_audio}, audio, {tokenizer_.ids.at("[NEXT_AUDIO_TEXT]")},
                 tokenizer_.encode(text), {tokenizer_.ids.at("[REPEAT_AUDIO_TEXT]"), begin_audio}});
    Ids ids = ids_;
    if (bundle_.constant("first_frame") == "audio_token") ids.push_back(number("audio_id"));
    Floats rows = engine_.run("embed_text", {{"ids", {ids, {1, -1}}}}).at("embeddings");
    bundle_.number("dim", dim, 1, rows.size() / ids.size());
    std::copy(voice.begin(), voice.end(), rows.begin() + 2 * dim);
    read("prefill", rows);
    generator_ = Generator(manner.seed);
    is_first_ = true;
  }

  double usual_frames(const std::string& text) const override { return 0.68 * matches("(?s).", text).size(); }
  // A model with a small vocabulary was trained on single sentences.
  size_t least_characters() const override { return number("vocab_size") < 10000 ? 0 : 60; }

  Codes frame() override {
    constexpr int64_t kEnd = 1, kFirst = 2;  // the end of the speech, and the first code with a sound
    const Floats &logits = outputs_.at("semantic_logits"), &condition = outputs_.at("condition");
    bundle_.number("semantic_codes", number("semantic_codes"), 1, int64_t(logits.size()) - kFirst);
    const auto first = logits.begin() + (std::exchange(is_first_, false) ? kFirst : kEnd);  // not silent
    Codes codes{std::max_element(first, logits.begin() + kFirst + number("semantic_codes")) - logits.begin()};
    noise_.resize(number("n_codebooks") - 1);
    for (float& value : noise_) value = generator_.normal();
    if (codes[0] == kEnd) return {};
    Floats x = noise_;
    for (int64_t step = 0; step < number("euler_steps"); ++step) {
      const Inputs inputs{{"x", {x, {1, -1}}}, {"step", Ids{step}}, {"condition", {condition, {1, -1}}}};
      x = engine_.run("acoustic_step", inputs).at("next_x");
    }
    const float highest = number("acoustic_levels") - 1;
    for (const float value : x) {  // lrint rounds half to even
      codes.push_back(kFirst + std::lrint((std::clamp(value, -1.0f, 1.0f) + 1) / 2 * highest));
    }
    return codes;
  }

  void step(const Codes& codes) override {
    read("decode_step", engine_.run("embed_codes", {{"codes", {codes, {1, -1}}}}).at("embeddings"));
  }

  // The tensor `embedding` of a file of safetensors
  Floats voice_rows(const std::string& name) const {
    const Json& voices = bundle_.manifest.at("voices");
    const std::string usual = voices.contains("neutral_female") ? "neutral_female"
                              : voices.empty() ? "" : voices.begin().key();
    const std::string file = voices.at(chosen(name, voices, usual)), bytes = bundle_.read(file);
    uint64_t length = 0;
    bytes.copy(reinterpret_cast<char*>(&length), 8);
    if (bytes.size() < 8 || length > bytes.size() - 8) throw Error(file + ": shorter than its header");
    const Json offsets = std::move(Json::parse(bytes.substr(8, length)).at("embedding").at("data_offsets"));
    const size_t first = offsets.at(0), end = offsets.at(1), row = number("dim") * sizeof(float);
    if (first >= end || end > bytes.size() - 8 - length || (end - first) % row != 0) {
      throw Error(file + ": expected rows of " + std::to_string(row) + " bytes, inside of the file");
    }
    Floats rows((end - first) / sizeof(float));
    bytes.copy(reinterpret_cast<char*>(rows.data()), end - first, 8 + length + first);
    return rows;
  }

  const Tokenizer tokenizer_ = tekken(bundle_);
  bool is_first_ = true;  // whether the next frame is the first one
};
