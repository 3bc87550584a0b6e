// Sessions of ONNX Runtime, one per graph, and the states of one stream.
#pragma once
#include <onnxruntime_cxx_api.h>
#include <algorithm>
#include <functional>
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
    for (const int64_t size : sizes) count /= std::max<int64_t>(size, 1);
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
  Outputs run(const std::string& component, Inputs inputs) try {
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
    size_t next = 0;
    Outputs outputs;
    for (const Json& output : signature.at("outputs")) outputs[name_of(output)] = copy(values.at(next++));
    const Tensor& first = inputs.at(name_of(signature.at("inputs").at(0)));
    for (const Json& state : signature.at("states")) {
      Tensor& past = kept(file, state);
      if (is_cache(state)) move_into_history(past, state.at("cache"), inputs.at("position"), first);
      else past.floats = copy(values.at(next));
      ++next;
    }
    return outputs;
  } catch (const Ort::Exception& error) {
    throw Error(bundle_.name + ": ONNX Runtime refuses " + component + ": " + error.what());
  }

 private:
  static std::string name_of(const Json& tensor) { return tensor.at("name"); }
  static bool is_cache(const Json& state) { return !state.at("cache").is_null(); }

  Ort::Session& session(const std::string& file) {
    if (const auto found = sessions_.find(file); found != sessions_.end()) return found->second;
    if (bundle_.manifest.at("files").contains(file + ".data")) bundle_.path(file + ".data");
    return sessions_.emplace(file, Ort::Session(env_, bundle_.path(file).c_str(), options_)).first->second;
  }

  Tensor& kept(const std::string& file, const Json& state) {
    const std::string key = "shape of " + name_of(state) + " of " + file;
    if (const auto found = states_.find(key); found != states_.end()) return found->second;
    int64_t count = 1;  // at most 1 GiB
    for (const Json& size : state.at("shape")) count *= bundle_.number(key, size, 1, (1 << 28) / count);
    return states_.emplace(key, Tensor(Floats(count), state.at("shape"))).first->second;
  }

  Ort::Value view(Tensor& of) const {
    const auto view = [&](auto& array) {
      return Ort::Value::CreateTensor(memory_, array.data(), array.size(), of.shape.data(), of.shape.size());
    };
    return of.integers.empty() ? view(of.floats) : view(of.integers);
  }

  static Floats copy(const Ort::Value& value) {
    const auto info = value.GetTensorTypeAndShapeInfo();
    const auto of = [&](auto* values) { return Floats(values, values + info.GetElementCount()); };
    const ONNXTensorElementDataType type = info.GetElementType();
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return of(value.GetTensorData<float>());
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) return of(value.GetTensorData<int64_t>());
    throw Ort::Exception("an output is neither float32 nor int64", ORT_INVALID_GRAPH);
  }

  // The rows of a call, which the graph wrote behind the history of a sliding window, become part of it.
  void move_into_history(Tensor& past, const Json& cache, const Tensor& position, const Tensor& call) const {
    if (cache.at("window").is_null()) return;
    const int64_t heads = past.shape.at(1), rows = past.shape.at(2), size = past.shape.at(3);
    const int64_t ring = bundle_.number("window", cache.at("window"), 2, rows) - 1;
    const int64_t per_position = bundle_.number("rows_per_position", cache.at("rows_per_position"), 1, rows);
    const int64_t first = position.integers[0] * per_position, count = call.shape.at(1) * per_position;
    const int64_t history = cache.at("max_call_rows") == 1 ? std::min(first, ring) : ring;
    bundle_.number("number of rows of a call", history + count, 1, rows);
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
