#include "engine/model/convert.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_file.h"
#include "engine/base/mapped_file.h"
#include "engine/base/staged_folder.h"
#include "engine/model/checkpoint.h"
#include "engine/model/folder_files.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

namespace keyhole {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

/// Adds MLKV to LlamaForCausalLM: modeling_llama_mlkv.py beside this file. The projections of a borrowing
/// layer return the owner's results. Its cache holds a copy of the owner's K and V, so that transformers
/// saves no memory; the values are the same.
constexpr std::string_view kTransformersCode =
#include "modeling_llama_mlkv.inc"
    ;

constexpr const char* kCodeFile = "modeling_llama_mlkv.py";

/// Names of types in safetensors, in the order of DType. Folders hold no quantised types.
constexpr std::array kStoredNames = {"F32", "F16", "BF16"};

struct Named {
    std::string_view name;
    Weight LayerWeights::*weight;
};
constexpr std::array kMerged = {Named{"self_attn.k_proj.weight", &LayerWeights::k},
                                Named{"self_attn.v_proj.weight", &LayerWeights::v},
                                Named{"self_attn.k_proj.bias", &LayerWeights::k_bias},
                                Named{"self_attn.v_proj.bias", &LayerWeights::v_bias},
                                Named{"self_attn.k_norm.weight", &LayerWeights::k_norm},
                                Named{"mlp.gate_proj.weight", &LayerWeights::gate},
                                Named{"mlp.gate_proj.bias", &LayerWeights::gate_bias},
                                Named{"mlp.up_proj.weight", &LayerWeights::up},
                                Named{"mlp.up_proj.bias", &LayerWeights::up_bias},
                                Named{"mlp.down_proj.weight", &LayerWeights::down}};

/// Returns the tensor of the new model; null data when the new model has none.
StoredTensor tensor_of(const Model& model, const Checkpoint& from, const std::string& name) {
    constexpr std::string_view kLayers = "model.layers.";
    StoredTensor stored = from.stored(name);
    int layer = -1;
    std::string_view rest = name;
    if (rest.starts_with(kLayers)) {
        rest.remove_prefix(kLayers.size());
        const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
        if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') return stored;
        rest.remove_prefix(to_index(end - rest.data()) + 1);
    }
    if (layer < 0 || layer >= model.config().n_layers) return stored;
    for (const Named& named : kMerged) {
        if (rest != named.name) continue;
        const Weight& w = model.weights().layers[to_index(layer)].*named.weight;
        const bool is_vector = stored.shape.size() == 1;
        stored = {w.dtype, is_vector ? std::vector<std::int64_t>{w.rows} : std::vector{w.rows, w.cols},
                  static_cast<const std::byte*>(w.data)};
    }
    return stored;
}

[[noreturn]] void fail_write(const fs::path& path, int error) {
    fail(ErrorCode::io, "cannot write {}: {}; check that the folder is writable and not full", path.string(),
         error != 0 ? std::strerror(error) : "not all of it arrived");
}

void copy_to(const fs::path& from, const fs::path& to) {
    std::error_code error;
    fs::copy_file(from, to, error);
    if (error) fail_write(to, error.value());
}

void write_tensors(const Model& model, const Checkpoint& from, const StagedFolder& staged,
                   const std::function<void(double)>& progress) {
    const fs::path path = staged.path() / "model.safetensors";
    OrderedJson header;
    header["__metadata__"] = {{"format", "pt"}};
    std::vector<std::pair<const std::byte*, std::size_t>> parts;
    std::size_t at = 0;
    for (const std::string& name : from.names()) {
        const StoredTensor tensor = tensor_of(model, from, name);
        if (tensor.data == nullptr) continue;
        std::size_t n = dtype_bytes(tensor.dtype);
        for (const std::int64_t extent : tensor.shape) n *= to_index(extent);
        header[name] = {{"dtype", kStoredNames[to_index(tensor.dtype)]},
                        {"shape", tensor.shape},
                        {"data_offsets", {at, at + n}}};
        parts.emplace_back(tensor.data, n);
        at += n;
    }
    staged.check_room(static_cast<std::int64_t>(at));
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    errno = 0;
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    constexpr std::size_t kPiece = std::size_t{16} << 20;
    std::size_t written = 0;
    for (const auto& [data, n] : parts)
        for (std::size_t begin = 0; begin < n && out; begin += kPiece) {
            const std::size_t piece = std::min(kPiece, n - begin);
            out.write(reinterpret_cast<const char*>(data + begin), static_cast<std::streamsize>(piece));
            written += piece;
            if (progress) progress(static_cast<double>(written) / static_cast<double>(at));
        }
    out.close();
    const int error = errno;
    if (!out) fail_write(path, error);
    from.check_unchanged();
}

/// Returns the source's config.json with the changes. code: transformers needs the folder's own code.
std::string new_config(const fs::path& folder, const Model& model, bool code) {
    const ModelConfig& c = model.config();
    OrderedJson config = ordered_json_of_text(read_text_file(folder / "config.json"));
    config["num_key_value_heads"] = c.n_kv_heads;
    config["intermediate_size"] = c.d_ff;
    if (c.merged) config["keyhole_merged"] = true;
    if (c.borrows_unrotated) config["keyhole_borrows_unrotated"] = true;
    if (kv_shape(c).n_layers < c.n_layers) {
        config["architectures"] = {"LlamaMlkvForCausalLM"};
        config["model_type"] = "llama_mlkv";
        config["num_key_value_layers"] = c.n_kv_layers;
    }
    if (code)
        config["auto_map"] = {{"AutoConfig", "modeling_llama_mlkv.LlamaMlkvConfig"},
                              {"AutoModelForCausalLM", "modeling_llama_mlkv.LlamaMlkvForCausalLM"}};
    else
        config.erase("auto_map");
    return config.dump(2) + "\n";
}

/// Returns whether the file, after following links, belongs to the folder: it lies below it, or where the
/// Hugging Face cache keeps the files that links in snapshots/<revision> point to.
bool belongs_to(const fs::path& file, const fs::path& folder) {
    const fs::path real = fs::canonical(file), home = fs::canonical(folder);
    const auto is_below = [&](const fs::path& above) {
        return std::mismatch(above.begin(), above.end(), real.begin(), real.end()).first == above.end();
    };
    const fs::path snapshots = home.parent_path();
    return is_below(home) ||
           (snapshots.filename() == "snapshots" && is_below(snapshots.parent_path() / "blobs"));
}

/// Returns the files that the new folder takes over unchanged. Refuses links that lead out of the folder:
/// its author must not choose files of the user that are then published with the new one.
std::vector<fs::path> files_to_copy(const fs::path& folder) {
    constexpr std::uintmax_t kMostBytes = std::uintmax_t{64} << 20;
    std::vector<fs::path> files;
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt",
          "added_tokens.json", "tokenizer.model", "generation_config.json"}) {
        const fs::path file = folder / name;
        if (!is_there(file)) continue;
        check_ordinary_file(file);
        if (!belongs_to(file, folder))
            fail(ErrorCode::bad_file,
                 "cannot convert {}: {} is a link to {}, outside of the folder; put the file itself there, "
                 "or take the link away",
                 folder.string(), name, fs::canonical(file).string());
        if (fs::file_size(file) > kMostBytes)
            fail(ErrorCode::bad_file, "cannot convert {}: {} has more than {} MiB; check the file",
                 folder.string(), name, kMostBytes >> 20);
        files.push_back(file);
    }
    return files;
}

void check_empty(const fs::path& out) {
    std::error_code error;
    if (!fs::is_directory(out, error)) return;
    for (const fs::directory_entry& entry : fs::directory_iterator(out, error))
        if (!entry.path().filename().string().starts_with("export.part"))  // of a conversion that was killed
            fail(ErrorCode::wrong_use, "{} is not empty; name a new folder with --out", out.string());
}

}  // namespace

Converted convert_model(const fs::path& folder, const KvSharing& sharing, const fs::path& out,
                        const std::function<void(double)>& progress) {
    const auto base = load_model(folder);
    if (!is_folder(folder))
        fail(ErrorCode::unsupported,
             "cannot convert {}: it is a GGUF file, and only Hugging Face folders can be converted; name the "
             "model's folder, or ORG/NAME of the hub",
             folder.string());
    const Checkpoint checkpoint(folder);
    if (!checkpoint.contains("model.layers.0.self_attn.k_proj.weight"))
        fail(ErrorCode::unsupported,
             "cannot convert {}: its family, {}, stores K and V under other names than LLaMA's "
             "(model.layers.N.self_attn.k_proj), and "
             "transformers has none of that family with fewer KV heads",
             folder.string(), base->config().family);
    const auto model = shared_model(base, sharing);
    const bool across = kv_shape(model->config()).n_layers < model->config().n_layers;
    if (across && base->config().family != "llama")
        fail(ErrorCode::unsupported,
             "cannot convert {}: layers share KV heads in folders of the llama family only, this is {}",
             folder.string(), base->config().family);
    const std::vector<fs::path> copied = files_to_copy(folder);
    check_empty(out);
    const bool code = across && !model->config().borrows_unrotated;
    StagedFolder staged(out, "a converted model");
    write_tensors(*model, checkpoint, staged, progress);
    for (const fs::path& file : copied) copy_to(file, staged.path() / file.filename());
    if (code) write_text_file(staged.path() / kCodeFile, kTransformersCode);
    write_text_file(staged.path() / "config.json", new_config(folder, *model, code));
    staged.publish({}, "config.json");
    Converted report{kv_name(model->config()), model->n_parameters(), model->config().d_ff, ""};
    if (!across || code)
        report.transformers =
            code ? "AutoModelForCausalLM with trust_remote_code=True" : "AutoModelForCausalLM";
    return report;
}

}  // namespace keyhole
