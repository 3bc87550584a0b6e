// Text to speech with Qwen3-TTS: speakers of the model, and voices by description.
#pragma once
#include "speaker.h"

class QwenTTS : public Speaker {
 public:
  using Speaker::Speaker;

 private:
  void start(const std::string& text, const Manner& manner) override {
    if (bundle_.constant("kind") == "base") throw Error(bundle_.name + ": a Base model; take another kind");
    ids_ = tokenizer_.encode(text);
    read("prefill", prompt(manner));
    generator_ = Generator(manner.seed);
    first_codes_.clear();
  }

  Codes frame() override {
    const int64_t books = number("n_codebooks") - 1, others = number("other_codes");
    const Floats first_noise = gumbel(number("vocab_size")), others_noise = gumbel(books * others);
    noise_ = first_noise;
    append(noise_, others_noise);
    const int64_t first = first_code(first_noise), top_k = sampling("others_top_k");
    if (first == number("codec_eos_token_id")) return {};
    first_codes_.push_back(first);
    const float temperature = sampling("others_temperature"), top_p = sampling("others_top_p");
    const bool draws = temperature > 0;
    const Inputs inputs{{"hidden", {outputs_.at("hidden"), {1, 1, -1}}},
                        {"codes", {join({{first}, Codes(books, -1)}), {1, -1}}},
                        {"noise", {draws ? others_noise : Floats(others_noise.size()), {1, books, -1}}},
                        {"temperature", {Floats{draws ? temperature : 1}, {1}}},
                        {"top_p", {Floats{top_p}, {1}}},
                        {"top_k", Ids{top_k > 0 ? std::min(top_k, others) : others}}};
    const Floats chosen = engine_.run("code_predictor", inputs).at("chosen");
    return {chosen.begin(), chosen.end()};
  }

  double usual_frames(const std::string& text) const override {
    return 0.83 * matches("(?s).", text).size() + 1.97 * matches(R"([\x{3000}-\x{10ffff}])", text).size();
  }

  void step(const Codes& codes) override { read("decode_step", sum(embed_codes(codes), padding_)); }
  double sampling(const char* name) const { return bundle_.constant("sampling_defaults").at(name); }

  // Adds b to a, again and again if it is shorter.
  static Floats sum(Floats a, const Floats& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b.at(i % std::max<size_t>(b.size(), 1));
    return a;
  }

  Floats embed_text(const Ids& ids) const {
    return engine_.run("embed_text", {{"ids", {ids, {1, -1}}}}).at("embeddings");
  }

  Floats embed_codes(const Codes& codes) const {
    return engine_.run("embed_codes", {{"codes", {codes, {1, -1, number("n_codebooks")}}}}).at("embeddings");
  }

  // Rows of code 0 alone: a code below 0 adds nothing.
  Floats embed_controls(const Ids& ids) const {
    Codes codes(ids.size() * number("n_codebooks"), -1);
    for (size_t i = 0; i < ids.size(); ++i) codes[i * number("n_codebooks")] = ids[i];
    return embed_codes(codes);
  }

  // Each row is the sum of a row of text and a row of codes. The first ones have text only.
  Floats prompt(const Manner& manner) const {
    const Ids start{number("im_start_id")}, end{number("im_end_id")}, line = tokenizer_.encode("\n");
    const Ids user = tokenizer_.encode("user\n"), instruct = tokenizer_.encode(manner.instruct);
    const bool ignores = bundle_.constant("kind") == "custom_voice" && bundle_.constant("size") == "0b6";
    Ids role = instruct.empty() || ignores ? Ids() : join({start, user, instruct, end, line});
    role = join({role, start, {number("assistant_id")}, line});
    const Ids controls = this->controls(manner);
    const Ids beside = join({Ids(controls.size() - 1, number("tts_pad_id")), {number("tts_bos_id")}});
    Floats rows = embed_text(role);
    append(rows, sum(embed_text(beside), embed_controls(controls)));
    const Ids body = join({ids_, {number("tts_eos_id")}});
    append(rows, sum(embed_text(body), embed_controls({number("codec_pad_id")})));
    append(rows, sum(padding_, embed_controls({number("codec_bos_id")})));
    return rows;
  }

  // Code 0 of the rows that tell the language and the speaker
  Ids controls(const Manner& manner) const {
    const Json &speakers = bundle_.constant("speakers"), &languages = bundle_.constant("codec_language_id");
    const std::string speaker = speakers.empty() ? "" : speakers.begin().key();
    const std::string voice = chosen(manner.voice, speakers, speaker);
    std::string language = chosen(manner.language, languages, "auto");
    const Json& native = bundle_.constant("dialects");
    if (native.contains(voice) && (language == "auto" || language == "chinese")) language = native.at(voice);
    const int64_t begin = number("codec_think_bos_id"), end = number("codec_think_eos_id");
    Ids think{number("codec_nothink_id"), begin, end};
    if (language != "auto") think = {number("codec_think_id"), begin, languages.at(language), end};
    if (!voice.empty()) think.push_back(speakers.at(voice));
    return join({think, {number("codec_pad_id")}});
  }

  Floats gumbel(int64_t count) {
    Floats noise(count);
    // 2^-126 in place of a smaller number, so that no noise is infinite
    for (float& value : noise) value = -std::log(std::max<double>(generator_.exponential(), 0x1p-126));
    return noise;
  }

  // Code 0 of the next frame
  int64_t first_code(const Floats& noise) const {
    const double penalty = sampling("repetition_penalty"), temperature = sampling("temperature");
    const Floats& logits = outputs_.at("logits");
    bundle_.number("vocab_size", noise.size(), 1, logits.size());
    std::vector<double> scores(logits.begin(), logits.end());
    for (size_t id = 0; id < scores.size(); ++id) {
      if (!std::count(first_codes_.begin(), first_codes_.end(), id)) continue;
      scores[id] = scores[id] > 0 ? scores[id] / penalty : scores[id] * penalty;
    }
    Ids ids(bundle_.number("first_codes", number("first_codes"), 1, noise.size()));
    std::iota(ids.begin(), ids.end(), 0);
    bundle_.number("codec_eos_token_id", number("codec_eos_token_id"), 0, noise.size() - 1);
    if (first_codes_.size() >= 2) ids.push_back(number("codec_eos_token_id"));  // not before two frames
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
    if (temperature == 0) return ids[0];
    const double best = scores[ids[0]];
    for (double& score : scores) score = (score - best) / temperature;
    const size_t top_k = sampling("top_k");  // 0 keeps all
    while (top_k > 0 && ids.size() > top_k && scores[ids.back()] < scores[ids[top_k - 1]]) ids.pop_back();
    double total = 0, before = 0;
    for (const int64_t id : ids) total += std::exp(scores[id]);
    size_t count = 0;
    while (count < ids.size() && before < sampling("top_p") * total) before += std::exp(scores[ids[count++]]);
    ids.resize(std::max<size_t>(count, 1));
    const auto is_less = [&](int64_t a, int64_t b) { return scores[a] + noise[a] < scores[b] + noise[b]; };
    return *std::max_element(ids.begin(), ids.end(), is_less);
  }

  const Tokenizer tokenizer_ = qwen(bundle_);
  Codes first_codes_;  // code 0 of each frame so far
  const Floats padding_ = embed_text({number("tts_pad_id")});  // the row of text beside frames
};
