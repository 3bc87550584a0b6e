// A bundle: its manifest, whose numbers have limits, and its files, whose sizes are checked.
#pragma once
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace fs = std::filesystem;
using Error = std::runtime_error;  // one line: what, where, what to do
using Json = nlohmann::json;

inline std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream || !fs::is_regular_file(path)) throw Error(path.string() + ": cannot be read; check its name");
  return {std::istreambuf_iterator<char>(stream), {}};
}

// A known name in place of one with other capitals; the usual name in place of an empty one
inline std::string chosen(std::string name, const Json& known, const std::string& usual) {
  if (known.contains(name)) return name;
  for (char& letter : name) letter = std::tolower(static_cast<unsigned char>(letter));
  if (known.contains(name)) return name;
  if (name.empty() || name == usual) return usual;
  std::string names;
  for (const auto& each : known.items()) names += " " + each.key();
  throw Error(name + ": no such voice or language; this bundle has" + (names.empty() ? " none" : names));
}

// The least and the most of some constants. Beyond them a loop may never end, or memory be short.
const std::map<std::string, std::pair<int64_t, int64_t>> kLimits{
    {"dim", {1, 65536}}, {"euler_steps", {1, 256}}, {"first_codes", {1, 1 << 20}}, {"flush_tokens", {0, 256}},
    {"hop_length", {32, 1024}}, {"left_pad_tokens", {0, 256}}, {"n_codebooks", {2, 256}},
    {"n_mels", {1, 1024}}, {"other_codes", {1, 65536}}, {"sample_rate", {1000, 384000}},
    {"samples_per_token", {1024, 8192}}, {"semantic_codes", {1, 1 << 20}}, {"vocab_size", {1, 1 << 20}},
    {"window_size", {32, 1024}}};

struct Bundle {
  explicit Bundle(const std::string& folder) : name(folder) {
    manifest = Json::parse(read_file(fs::path(name) / "manifest.json"));
    number("schema_version", manifest.at("schema_version"), 3, 3);
    const std::string target = job("target"), precision = job("compute_precision");
    if (target != "onnx") throw Error(name + ": made for " + target + "; export it with --target onnx");
    if (precision != "float32") throw Error(name + ": computes in " + precision + "; export it in float32");
    for (Json& each : manifest["job"]["components"]) components[each.at("name")].swap(each);
    for (const auto& [key, limits] : kLimits) {
      number(key, job("constants").value(key, limits.first), limits.first, limits.second);
    }
  }

  const Json& job(const char* key) const { return manifest.at("job").at(key); }
  const Json& constant(const char* name) const { return job("constants").at(name); }
  int64_t size(const char* at) const { return number(at, components.at(Json::json_pointer(at)), 1, 1 << 24); }
  std::string read(const std::string& file) const { return read_file(path(file)); }

  // A number of the manifest, within its limits
  double number(const std::string& what, const Json& value, int64_t low, int64_t high) const {
    if (value.is_number() && value >= low && value <= high) return value;
    const std::string found = value.is_number() ? value.dump() : value.type_name();
    const std::string limits = std::to_string(low) + (low == high ? "" : " to " + std::to_string(high));
    throw Error(name + "/manifest.json: " + what + " is " + found + ", expected " + limits);
  }

  fs::path path(const std::string& file) const {
    if (file[0] == '/' || file.find("..") != file.npos) throw Error(file + ": not inside of the bundle");
    const fs::path path = fs::path(name) / file;
    const std::string expected = std::to_string(manifest.at("files").at(file).at("size").get<int64_t>());
    const std::string size = fs::exists(path) ? std::to_string(fs::file_size(path)) : "no";
    if (size == expected) return path;
    throw Error(path.string() + ": " + size + " bytes, expected " + expected + "; copy the bundle again");
  }

  const std::string name;     // its folder
  Json manifest, components;  // components: by name, moved, because copies of deep values take a deep stack
};
