// A bundle: its manifest, and its files, whose sizes are checked.
#pragma once
#include <filesystem>
#include <fstream>
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

struct Bundle {
  explicit Bundle(const std::string& folder) : name(folder) {
    manifest = Json::parse(read_file(fs::path(name) / "manifest.json"));
    const std::string version = manifest.at("schema_version").dump();
    if (version != "3") throw Error(name + ": schema version " + version + ", expected 3; export it again");
    const std::string target = job("target"), precision = job("compute_precision");
    if (target != "onnx") throw Error(name + ": made for " + target + "; export it with --target onnx");
    if (precision != "float32") throw Error(name + ": computes in " + precision + "; export it in float32");
    for (const Json& component : job("components")) components[component.at("name")] = component;
  }

  const Json& job(const char* key) const { return manifest.at("job").at(key); }
  const Json& constant(const char* name) const { return job("constants").at(name); }
  const Json& component(const char* path) const { return components.at(Json::json_pointer(path)); }
  std::string read(const std::string& file) const { return read_file(path(file)); }

  fs::path path(const std::string& file) const {
    if (file[0] == '/' || file.find("..") != file.npos) throw Error(file + ": not inside of the bundle");
    const fs::path path = fs::path(name) / file;
    const std::string expected = manifest.at("files").at(file).at("size").dump();
    const std::string size = fs::exists(path) ? std::to_string(fs::file_size(path)) : "no";
    if (size == expected) return path;
    throw Error(path.string() + ": " + size + " bytes, expected " + expected + "; copy the bundle again");
  }

  const std::string name;     // its folder
  Json manifest, components;  // components: by name
};
