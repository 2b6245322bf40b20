#include "tests/reference/tiny_model.h"

#include "engine/base/index.h"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

namespace reference {
namespace {

using nlohmann::json;

// Rounds toward zero. That is enough: the reference decodes the written bits.
std::uint16_t bf16_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return static_cast<std::uint16_t>(bits >> 16);
}

std::uint16_t fp16_bits(float value) {
    const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
    int exponent = 0;
    const double fraction = std::frexp(std::abs(static_cast<double>(value)), &exponent);  // in [0.5, 1)
    if (value == 0.0f) return static_cast<std::uint16_t>(sign);
    if (exponent < -13)  // subnormal: units of 2^-24
        return static_cast<std::uint16_t>(sign | static_cast<unsigned>(std::ldexp(fraction, exponent + 24)));
    const auto mantissa = static_cast<unsigned>((2.0 * fraction - 1.0) * 1024.0);
    return static_cast<std::uint16_t>(sign | (static_cast<unsigned>(exponent + 14) << 10) | mantissa);
}

class Writer {
  public:
    Writer(const TinyShape& shape) : shape_(shape), random_(shape.seed) {}

    // Uniform with the given deviation: bounded, and equal on every standard library.
    void matrix(const std::string& name, int rows, int cols, double deviation) {
        begin(name, {rows, cols});
        for (std::int64_t i = 0; i < std::int64_t{rows} * cols; ++i)
            put(deviation * std::sqrt(3.0) * centred());
        end();
    }
    void gain(const std::string& name, int n) {
        begin(name, {n});
        for (int i = 0; i < n; ++i) put(1.0 + 0.3 * centred());
        end();
    }
    void save(const std::filesystem::path& path) {
        std::string header = header_.dump();
        header.resize((header.size() + 7) / 8 * 8, ' ');
        const std::uint64_t length = header.size();
        std::ofstream out(path, std::ios::binary);
        out.write(reinterpret_cast<const char*>(&length), 8);
        out << header << data_;
    }

  private:
    double centred() { return 2.0 * (static_cast<double>(random_() >> 11) / 9007199254740992.0) - 1.0; }
    void begin(const std::string& name, const std::vector<int>& extents) {
        const char* dtypes[] = {"F32", "F16", "BF16"};
        entry_ = &header_[name];
        (*entry_)["dtype"] = dtypes[static_cast<int>(shape_.dtype)];
        (*entry_)["shape"] = extents;
        begin_ = data_.size();
    }
    void end() { (*entry_)["data_offsets"] = {begin_, data_.size()}; }
    void put(double value) {
        const auto single = static_cast<float>(value);
        if (shape_.dtype == StoredAs::f32) return append(single);
        append(shape_.dtype == StoredAs::f16 ? fp16_bits(single) : bf16_bits(single));
    }
    template <class T>
    void append(T value) {
        data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }

    TinyShape shape_;
    std::mt19937_64 random_;
    json header_;
    json* entry_ = nullptr;
    std::size_t begin_ = 0;
    std::string data_;
};

// GPT-2's letters for bytes: printable Latin-1 stands for itself, other bytes follow from U+0100 on.
std::string letter_of_byte(int byte) {
    static const std::vector<int> code_points = [] {
        std::vector<int> table(256);
        int next = 256;
        for (int b = 0; b < 256; ++b) {
            const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            table[keyhole::to_index(b)] = printable ? b : next++;
        }
        return table;
    }();
    const int c = code_points[keyhole::to_index(byte)];
    if (c < 128) return {static_cast<char>(c)};
    return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
}

json special_token(int id, const char* content) {
    return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
            {"rstrip", false}, {"normalized", false}, {"special", true}};
}

json tokenizer_json() {
    json vocab;
    for (int b = 0; b < 256; ++b) vocab[letter_of_byte(b)] = b;
    vocab["<s>"] = kBos;
    vocab["</s>"] = kEos;
    const json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    const json bos = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
    const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const json text_b = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", {special_token(kBos, "<s>"), special_token(kEos, "</s>")}},
            {"normalizer", nullptr},
            {"pre_tokenizer", byte_level},
            {"post_processor",
             {{"type", "TemplateProcessing"},
              {"single", {bos, text}},
              {"pair", {bos, text, text_b}},
              {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {kBos}}, {"tokens", {"<s>"}}}}}}}},
            {"decoder", byte_level},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", nullptr},
              {"continuing_subword_prefix", nullptr},
              {"end_of_word_suffix", nullptr},
              {"fuse_unk", false},
              {"byte_fallback", false},
              {"vocab", vocab},
              {"merges", json::array()}}}};
}

bool owns_kv(const TinyShape& shape, int layer) {
    if (shape.n_kv_layers == 0) return true;
    for (int i = 0; i < shape.n_kv_layers; ++i)
        if (i * shape.n_layers / shape.n_kv_layers == layer) return true;
    return false;
}

json config_json(const TinyShape& shape) {
    const bool shares = shape.n_kv_layers != 0;
    return {{"architectures", {shares ? "LlamaMlkvForCausalLM" : "LlamaForCausalLM"}},
            {"model_type", shares ? "llama_mlkv" : "llama"},
            {"num_key_value_layers", shares ? shape.n_kv_layers : shape.n_layers},
            {"hidden_size", shape.n_heads * shape.head_dim},
            {"intermediate_size", shape.d_ff},
            {"num_hidden_layers", shape.n_layers},
            {"num_attention_heads", shape.n_heads},
            {"num_key_value_heads", shape.n_kv_heads},
            {"vocab_size", shape.n_vocab},
            {"max_position_embeddings", shape.n_ctx},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", shape.rope_theta},
            {"rope_scaling", nullptr},
            {"hidden_act", "silu"},
            {"attention_bias", false},
            {"tie_word_embeddings", shape.tied},
            {"bos_token_id", kBos},
            {"eos_token_id", shape.eos}};
}

void write_weights(const TinyShape& shape, const std::filesystem::path& path) {
    const int d_model = shape.n_heads * shape.head_dim, d_kv = shape.n_kv_heads * shape.head_dim;
    const double inner = shape.spread / std::sqrt(d_model);
    Writer writer(shape);
    writer.matrix("model.embed_tokens.weight", shape.n_vocab, d_model, 1.0);
    for (int l = 0; l < shape.n_layers; ++l) {
        const std::string at = "model.layers." + std::to_string(l) + ".";
        writer.gain(at + "input_layernorm.weight", d_model);
        writer.matrix(at + "self_attn.q_proj.weight", d_model, d_model, inner);
        for (const char* name : {"k", "v"})
            if (owns_kv(shape, l))
                writer.matrix(at + "self_attn." + name + "_proj.weight", d_kv, d_model, inner);
        writer.matrix(at + "self_attn.o_proj.weight", d_model, d_model, inner);
        writer.gain(at + "post_attention_layernorm.weight", d_model);
        writer.matrix(at + "mlp.gate_proj.weight", shape.d_ff, d_model, inner);
        writer.matrix(at + "mlp.up_proj.weight", shape.d_ff, d_model, inner);
        writer.matrix(at + "mlp.down_proj.weight", d_model, shape.d_ff, shape.spread / std::sqrt(shape.d_ff));
    }
    writer.gain("model.norm.weight", d_model);
    if (!shape.tied) writer.matrix("lm_head.weight", shape.n_vocab, d_model, inner);
    writer.save(path);
}

}  // namespace

TinyModel::TinyModel(const TinyShape& shape) : shape_(shape) {
    static std::atomic<int> count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("keyhole-test-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(folder_);
    write_weights(shape, folder_ / "model.safetensors");
    std::ofstream(folder_ / "config.json") << config_json(shape).dump(1);
    std::ofstream(folder_ / "tokenizer.json") << tokenizer_json().dump(1);
}

TinyModel::~TinyModel() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

namespace {

/// A tensor of the folder's file, open for changes.
struct TensorInFile {
    TensorInFile(const std::filesystem::path& folder, const std::string& tensor)
        : file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary) {
        std::uint64_t n_header = 0;
        file.read(reinterpret_cast<char*>(&n_header), sizeof n_header);
        std::string header(n_header, ' ');
        file.read(header.data(), static_cast<std::streamsize>(n_header));
        about = nlohmann::json::parse(header).at(tensor);
        first_byte = sizeof n_header + n_header + about.at("data_offsets").at(0).get<std::uint64_t>();
    }
    std::fstream file;
    nlohmann::json about;
    std::uint64_t first_byte = 0;
};

}  // namespace

void put_nan(const std::filesystem::path& folder, const std::string& tensor) {
    TensorInFile stored(folder, tensor);
    stored.file.seekp(static_cast<std::streamoff>(stored.first_byte));
    const float nan = std::nanf("");
    stored.file.write(reinterpret_cast<const char*>(&nan), sizeof nan);
}

void scale_rows(const std::filesystem::path& folder, const std::string& tensor, double factor, int first_row,
                int n_rows) {
    TensorInFile stored(folder, tensor);
    const bool wide = stored.about.at("dtype") == "F32";
    const std::size_t size = wide ? 4 : 2, cols = stored.about.at("shape").at(1).get<std::size_t>();
    std::vector<char> bytes(static_cast<std::size_t>(n_rows) * cols * size);
    const auto at =
        static_cast<std::streamoff>(stored.first_byte + static_cast<std::uint64_t>(first_row) * cols * size);
    stored.file.seekg(at);
    stored.file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    for (std::size_t i = 0; i < bytes.size(); i += size) {
        std::uint32_t bits = 0;  // a bf16 is the upper half of a float
        std::memcpy(reinterpret_cast<char*>(&bits) + (4 - size), &bytes[i], size);
        float value = 0;
        std::memcpy(&value, &bits, sizeof value);
        value = static_cast<float>(value * factor);
        std::memcpy(&bits, &value, sizeof bits);
        std::memcpy(&bytes[i], reinterpret_cast<char*>(&bits) + (4 - size), size);
    }
    stored.file.seekp(at);
    stored.file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string random_text(int n_bytes, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::string text;
    for (int i = 0; i < n_bytes; ++i) {
        const auto pick = random() % 32;
        text += pick < 26 ? static_cast<char>('a' + pick) : ' ';
    }
    return text;
}

std::vector<int> random_tokens(int n_tokens, std::uint64_t seed) {
    std::vector<int> tokens = {kBos};
    for (unsigned char byte : random_text(n_tokens - 1, seed)) tokens.push_back(byte);
    return tokens;
}

}  // namespace reference
