// Sessions of ONNX Runtime, one per graph, and the states of one stream.
#pragma once
#include <onnxruntime_cxx_api.h>
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <vector>
#include "bundle.h"

using Floats = std::vector<float>;
using Integers = std::vector<int64_t>;
using Ids = Integers;
using Codes = Integers;  // a frame of speech; empty at the end of the speech

inline void append(Floats& whole, const Floats& part) { whole.insert(whole.end(), part.begin(), part.end()); }

inline Integers join(const std::vector<Integers>& parts) {
  Integers whole;
  for (const Integers& part : parts) whole.insert(whole.end(), part.begin(), part.end());
  return whole;
}

struct Tensor {
  // One size may be -1: it is what the values leave.
  Tensor(Floats values, Integers sizes) : shape(complete(sizes, values.size())), floats(values) {}
  Tensor(Integers values, Integers sizes = {-1}) : shape(complete(sizes, values.size())), integers(values) {}

  static Integers complete(Integers sizes, int64_t count) {
    for (const int64_t size : sizes) count /= size == -1 ? 1 : size;
    std::replace(sizes.begin(), sizes.end(), int64_t{-1}, count);
    return sizes;
  }

  Integers shape;
  Floats floats;
  Integers integers;  // empty if the values are floats
};

using Inputs = std::map<std::string, Tensor>;
using Outputs = std::map<std::string, Floats>;

class Engine {
 public:
  // 0 threads: a session takes all cores.
  Engine(const Bundle& bundle, int threads) : bundle_(bundle) {
    options_.SetIntraOpNumThreads(threads);
    // Threads that spin after a call compete with the threads of the next session.
    options_.AddConfigEntry("session.force_spinning_stop", "1");
  }

  // States are kept from call to call. At position 0 a graph ignores what they hold.
  Outputs run(const std::string& component, Inputs inputs) {
    const Json &entry = bundle_.components.at(component), &signature = entry.at("signature");
    const std::string file = entry.at("file");
    Ort::IoBinding binding(session(file));
    for (auto& [name, tensor] : inputs) binding.BindInput(name.c_str(), view(tensor));
    for (const Json& output : signature.at("outputs")) binding.BindOutput(name_of(output).c_str(), memory_);
    for (const Json& state : signature.at("states")) {
      const std::string past = "past." + name_of(state), present = "present." + name_of(state);
      const Ort::Value value = view(kept(file, state));
      binding.BindInput(past.c_str(), value);
      // Past and present of a cache are one buffer: the graph writes the rows of the call, and copies none.
      if (is_cache(state)) binding.BindOutput(present.c_str(), value);
      else binding.BindOutput(present.c_str(), memory_);
    }
    session(file).Run(Ort::RunOptions(), binding);
    const std::vector<Ort::Value> values = binding.GetOutputValues();
    auto value = values.begin();
    Outputs outputs;
    for (const Json& output : signature.at("outputs")) outputs[name_of(output)] = copy(*value++);
    const Tensor& first = inputs.at(name_of(signature.at("inputs").at(0)));
    for (const Json& state : signature.at("states")) {
      Tensor& past = kept(file, state);
      if (is_cache(state)) move_into_history(past, state.at("cache"), inputs.at("position"), first);
      else past.floats = copy(*value);
      ++value;
    }
    return outputs;
  }

 private:
  static std::string name_of(const Json& tensor) { return tensor.at("name"); }
  static bool is_cache(const Json& state) { return !state.at("cache").is_null(); }

  Ort::Session& session(const std::string& file) {
    if (const auto found = sessions_.find(file); found != sessions_.end()) return found->second;
    const fs::path path = bundle_.path(file);
    if (bundle_.manifest.at("files").contains(file + ".data")) bundle_.path(file + ".data");
    try {
      return sessions_.emplace(file, Ort::Session(env_, path.c_str(), options_)).first->second;
    } catch (const Ort::Exception& error) {
      throw Error(path.string() + ": ONNX Runtime cannot open it: " + error.what());
    }
  }

  Tensor& kept(const std::string& file, const Json& state) {
    const std::string key = file + " " + name_of(state);
    if (const auto found = states_.find(key); found != states_.end()) return found->second;
    const Integers shape = state.at("shape");
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    return states_.emplace(key, Tensor(Floats(count), shape)).first->second;
  }

  Ort::Value view(Tensor& tensor) const {
    const auto of = [&](auto& values) {
      const Integers& shape = tensor.shape;
      return Ort::Value::CreateTensor(memory_, values.data(), values.size(), shape.data(), shape.size());
    };
    return tensor.integers.empty() ? of(tensor.floats) : of(tensor.integers);
  }

  static Floats copy(const Ort::Value& value) {
    const auto info = value.GetTensorTypeAndShapeInfo();
    const auto of = [&](auto* values) { return Floats(values, values + info.GetElementCount()); };
    const bool is_float = info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    return is_float ? of(value.GetTensorData<float>()) : of(value.GetTensorData<int64_t>());
  }

  // The rows of a call, which the graph wrote behind the history of a sliding window, become part of it.
  static void move_into_history(Tensor& past, const Json& cache, const Tensor& position, const Tensor& call) {
    if (cache.at("window").is_null()) return;
    const int64_t heads = past.shape[1], rows = past.shape[2], size = past.shape[3];
    const int64_t ring = cache.at("window").get<int64_t>() - 1, per_position = cache.at("rows_per_position");
    const int64_t first = position.integers[0] * per_position, count = call.shape[1] * per_position;
    const int64_t history = cache.at("max_call_rows") == 1 ? std::min(first, ring) : ring;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = history + i, to = (first + i) % ring;
      for (int64_t head = 0; from >= ring && head < heads; ++head) {
        float* row = &past.floats[head * rows * size];
        std::copy_n(row + from * size, size, row + to * size);
      }
    }
  }

  const Bundle& bundle_;
  Ort::Env env_{ORT_LOGGING_LEVEL_FATAL, "voxport"};  // errors are thrown, so the log needs no second copy
  Ort::SessionOptions options_;
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  std::map<std::string, Ort::Session> sessions_;  // by file
  std::map<std::string, Tensor> states_;          // by file and name
};

