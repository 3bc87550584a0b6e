// Speech to text with Voxtral-Realtime.
#pragma once
#include "mel.h"
#include "tokenizer.h"

class Listener {
 public:
  Listener(const Bundle& bundle, Engine& engine) : bundle_(bundle), engine_(engine) {}

  // `delay` is an index into `delays`. Live sound gives text with each token of 80 ms.
  void begin(int64_t delay = 0, bool is_live = false) {
    mel_ = LogMel(bundle_.job("constants"));
    frames_.clear(), sounds_.clear(), tokens_.clear(), seen_.clear();
    samples_ = encoded_ = position_ = 0;
    delay_ = delay;
    has_text_ = false;
    chunk_ = bundle_.size("/audio_encoder/signature/dims/T/1");
    append(frames_, mel_.feed(Floats(number("left_pad_tokens") * number("samples_per_token"))));
    encode(1);
    if (is_live) chunk_ = 1;
  }

  // The text that these samples complete. A character may begin in one text and end in the next one.
  std::string feed(const Floats& samples) {
    samples_ += samples.size();
    append(frames_, mel_.feed(samples));
    encode(chunk_);
    return decode();
  }

  std::string finish() {
    const int64_t size = number("samples_per_token"), silent = delay() + number("flush_tokens") + 1;
    const int64_t beyond = number("window_size") / 2 - number("hop_length");  // the centre of the last frame
    append(frames_, mel_.feed(Floats((size - samples_ % size) % size + silent * size + beyond)));
    encode(1);
    return decode();
  }

  // The arrays of vectors.json for its request
  Json vectors(const Json& request) {
    const std::string bytes = decode_base64(request.at("recording"));
    Floats samples(bytes.size() / 2);
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i] = static_cast<int16_t>((bytes[2 * i] & 255) | (bytes[2 * i + 1] & 255) << 8) / 32768.0f;
    }
    request.at("tokens").get_to(forced_);
    begin(request.at("delay"));
    feed(samples);
    finish();
    forced_.clear();
    return {{"mel", seen_["mel"]}, {"audio_embeds", seen_["embeddings"]}, {"prefill_logits", seen_["logits"]},
            {"tokens", tokens_}, {"last_logits", logits_}};
  }

 private:
  int64_t number(const char* constant) const { return bundle_.constant(constant); }
  int64_t delay() const { return bundle_.number("delays", bundle_.constant("delays").at(delay_), 0, 256); }

  // Encodes the frames so far if they have so many tokens of sound.
  void encode(int64_t least) {
    const int64_t rows = number("samples_per_token") / number("hop_length"), size = rows * number("n_mels");
    while (static_cast<int64_t>(frames_.size()) >= least * size) {
      const int64_t count = std::min<int64_t>(chunk_, frames_.size() / size);
      const Floats mel(frames_.begin(), frames_.begin() + count * size);
      frames_.erase(frames_.begin(), frames_.begin() + count * size);
      const bool is_chunk = count == 1 && bundle_.components.contains("encode_chunk");
      const Inputs inputs{{"mel", {mel, {1, count, rows, -1}}}, {"position", Ids{encoded_}}};
      const Floats sounds = engine_.run(is_chunk ? "encode_chunk" : "audio_encoder", inputs).at("embeddings");
      append(sounds_, sounds);
      encoded_ += count;
      if (!forced_.empty()) append(seen_["mel"], mel), append(seen_["embeddings"], sounds);
    }
  }

  // Reads the tokens of sound so far: their text.
  std::string decode() {
    const int64_t prompt = number("left_pad_tokens") + delay() + 1;
    std::string text;
    if (position_ == 0 && static_cast<int64_t>(sounds_.size()) >= prompt * number("dim")) {
      Ids ids(std::min<int64_t>(prompt, bundle_.size("/prefill/signature/dims/S/1")), number("pad_id"));
      ids[0] = number("bos_id");
      read("prefill", ids);
      while (position_ < prompt) read("decode_step", {number("pad_id")});
      if (!forced_.empty()) seen_["logits"] = logits_;
      text = take();
    }
    while (position_ > 0 && !sounds_.empty()) {
      const size_t last = tokens_.size() - 1;
      read("decode_step", {last < forced_.size() ? forced_[last] : tokens_[last]});
      text += take();
    }
    return text;
  }

  // Reads ids, each with the next token of sound.
  void read(const std::string& component, const Ids& ids) {
    Floats rows = engine_.run("embed_tokens", {{"ids", {ids, {1, -1}}}}).at("embeddings");
    bundle_.number("size of embeddings of embed_tokens", rows.size(), 1, sounds_.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += sounds_[i];
    sounds_.erase(sounds_.begin(), sounds_.begin() + rows.size());
    const Tensor embeddings(rows, {1, -1, number("dim")});
    const Inputs inputs{{"embeddings", embeddings}, {"position", Ids{position_}}, {"delay", Ids{delay_}}};
    logits_ = engine_.run(component, inputs).at("logits");
    position_ += ids.size();
  }

  // Takes the next token: its text, without the space before the first word
  std::string take() {
    tokens_.push_back(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
    const auto text = tokenizer_.texts.find(tokens_.back());
    if (text == tokenizer_.texts.end()) return "";
    return text->second.substr(!std::exchange(has_text_, true) && text->second[0] == ' ');
  }

  const Bundle& bundle_;
  Engine& engine_;
  const Tokenizer tokenizer_ = tekken(bundle_);
  LogMel mel_{bundle_.job("constants")};
  Floats frames_, sounds_, logits_;  // to encode, to read, and of the last row
  int64_t delay_ = 0, chunk_ = 0;    // chunk: the most tokens of sound in a call
  int64_t samples_ = 0, encoded_ = 0, position_ = 0;  // samples, tokens of sound, and rows so far
  bool has_text_ = false;
  Ids tokens_, forced_;  // chosen, and read in their place by `vectors`
  Outputs seen_;         // by `vectors`
};

// Removes the offset of a recording, and makes a quiet one as loud as the model expects.
inline void amplify(Floats& samples) {
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0), mean = sum / samples.size();
  for (float& sample : samples) sample -= mean;
  float peak = 0;
  for (const float sample : samples) peak = std::max(peak, std::abs(sample));
  if (peak < 0.001f || peak >= 0.5011872f) return;                              // -60 dB, -6 dB
  for (float& sample : samples) sample *= std::min(100.0f, 0.8912509f / peak);  // 40 dB, -1 dB
}
