// Byte-level BPE: text to ids with the files of a bundle.
#pragma once
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <array>
#include <memory>
#include <sstream>
#include <unordered_map>
#include "engine.h"

// The matches of a regular expression with the classes of Unicode. None may be empty.
inline std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const auto bytes = [](const std::string& string) { return reinterpret_cast<PCRE2_SPTR>(string.data()); };
  int error = 0;
  size_t place = 0;
  const std::shared_ptr<pcre2_code> code(
      pcre2_compile(bytes(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr),
      pcre2_code_free);
  if (!code) throw Error("pattern " + pattern + ": PCRE2 refuses it at " + std::to_string(place));
  const std::shared_ptr<pcre2_match_data> match(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const size_t* range = pcre2_get_ovector_pointer(match.get());
  std::vector<std::string> found;
  for (size_t at = 0; at < text.size(); at = range[1]) {
    const int result = pcre2_match(code.get(), bytes(text), text.size(), at, 0, match.get(), nullptr);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) throw Error("text: PCRE2 cannot read it; give it in UTF-8");
    if (range[1] <= at) throw Error("pattern " + pattern + ": matches no letter, expected one or more");
    found.push_back(text.substr(range[0], range[1] - range[0]));
  }
  return found;
}

struct Tokenizer {
  Ids encode(const std::string& text) const {
    Ids found;
    for (const std::string& piece : matches(pattern, text)) {
      std::vector<std::string> symbols;
      for (const unsigned char byte : piece) symbols.push_back(letters[byte]);
      while (merge(symbols)) continue;
      for (const std::string& symbol : symbols) found.push_back(ids.at(symbol));
    }
    return found;
  }

  // Joins the two neighbours with the lowest rank, the leftmost first. Returns whether there are any.
  bool merge(std::vector<std::string>& symbols) const {
    int64_t lowest = INT64_MAX;
    size_t at = 0;
    for (size_t i = 1; i < symbols.size(); ++i) {
      const auto found = ranks.find(symbols[i - 1] + between + symbols[i]);
      if (found != ranks.end() && found->second < lowest) lowest = found->second, at = i;
    }
    if (at == 0) return false;
    symbols[at - 1] += symbols[at];
    symbols.erase(symbols.begin() + at);
    return true;
  }

  std::string pattern, between;                         // `between` joins a pair to a key of `ranks`
  std::array<std::string, 256> letters;                 // a symbol for each byte
  Json ids;                                             // by token
  std::unordered_map<std::string, int64_t> ranks;       // by pair
  std::unordered_map<int64_t, std::string> texts;       // by id; ids without a text are left out
};

inline std::string decode_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t value = 0, bits = 0;
  for (const char digit : text.substr(0, text.find('='))) {
    value = value << 6 | digits.find(digit);
    if ((bits += 6) >= 8) bytes += static_cast<char>(value >> (bits -= 8));
  }
  return bytes;
}

// The tokenizer of Mistral
inline Tokenizer tekken(const Bundle& bundle) {
  const Json json = Json::parse(bundle.read("tekken.json")), &config = json.at("config");
  const int64_t first = config.at("default_num_special_tokens"), end = config.at("default_vocab_size");
  Tokenizer found{config.at("pattern"), "", {}, {}, {}, {}};
  for (int byte = 0; byte < 256; ++byte) found.letters[byte] = static_cast<char>(byte);
  for (const Json& entry : json.at("vocab")) {
    const int64_t rank = entry.at("rank");
    if (first + rank >= end) continue;
    const std::string& text = found.texts[first + rank] = decode_base64(entry.at("token_bytes"));
    found.ids[text] = first + rank;
    found.ranks[text] = rank;
  }
  for (const Json& each : json.at("special_tokens")) found.ids.emplace(each.at("token_str"), each.at("rank"));
  return found;
}

// The tokenizer of Qwen. Its texts must be in NFC.
inline Tokenizer qwen(const Bundle& bundle) {
  const std::string pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                              R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  Tokenizer found{pattern, " ", {}, Json::parse(bundle.read("vocab.json")), {}, {}};
  std::istringstream lines(bundle.read("merges.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.rfind("#version", 0) != 0) found.ranks.emplace(line, found.ranks.size());
  }
  // Bytes that print stand for themselves, others for letters from U+0100 on.
  for (int byte = 0, next = 256; byte < 256; ++byte) {
    const bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int code = prints ? byte : next++;
    if (code >= 128) found.letters[byte] = static_cast<char>(0xc0 | code >> 6);
    found.letters[byte] += static_cast<char>(code < 128 ? code : 0x80 | (code & 63));
  }
  return found;
}
