#include "engine/model/other_formats.h"

#include "engine/base/error.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/model/folder_files.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <vector>

namespace keyhole {
namespace {

namespace fs = std::filesystem;

/// Returns a hint from the file's name; empty for an unknown one.
std::string hint_for_file(const fs::path& file, const std::string& from) {
    const std::string name = shown_text(file.filename().string()), extension = file.extension().string();
    const auto by_transformers = [&](const std::string& what, const std::string& option) {
        return fmt::format(
            "{} is {}; convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained('{}'{}).save_pretrained(DIR)",
            name, what, from, option);
    };
    if (extension == ".gguf") return fmt::format("{} is a GGUF file: name the file, not its folder", name);
    if (name.starts_with("consolidated.") && extension == ".pth")
        return fmt::format(
            "{} is LLaMA's original form; convert it with transformers: convert_llama_weights_to_hf.py",
            name);
    if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt")
        return by_transformers("a PyTorch file", "");
    if (extension == ".h5") return by_transformers("a TensorFlow file", ", from_tf=True");
    if (extension == ".msgpack") return by_transformers("a Flax file", ", from_flax=True");
    if (extension == ".onnx")
        return name + " is an ONNX file, which Keyhole cannot use; download the model as safetensors";
    return {};
}

}  // namespace

std::string conversion_hint(const fs::path& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
        if (path.extension() == ".safetensors") return "name the folder that it lies in";
        const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
        return hint_for_file(path, folder.string());
    }
    std::vector<fs::path> files;
    for (auto entry = fs::directory_iterator(path, error); !error && entry != fs::directory_iterator();
         entry.increment(error))
        files.push_back(entry->path());
    std::sort(files.begin(), files.end());  // the same file every time
    for (const fs::path& file : files) {
        if (file.filename() == "training_args.bin") continue;
        if (std::string hint = hint_for_file(file, path.string()); !hint.empty()) return hint;
    }
    return {};
}

void refuse_adapter(const fs::path& folder) {
    const fs::path config = folder / "adapter_config.json";
    if (!is_there(config) || is_there(folder / "model.safetensors") ||
        is_there(folder / "model.safetensors.index.json"))
        return;
    std::string base = "its base model";
    try {
        const nlohmann::json json = read_json_object(config, {std::size_t{4} << 20, 250'000});
        const auto name = json.find("base_model_name_or_path");
        if (name != json.end() && name->is_string()) base = shown_text(name->get<std::string>());
    } catch (const Error&) {
        // The name only helps the message.
    }
    fail(ErrorCode::unsupported,
         "cannot load {}: it is an adapter (LoRA, PEFT), no model; merge it into {} with peft: "
         "AutoPeftModelForCausalLM.from_pretrained('{}').merge_and_unload().save_pretrained(DIR)",
         folder.string(), base, folder.string());
}

}  // namespace keyhole
