#include "app/study/head_files.h"

#include "app/study/head_budgets.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/policy/head_file.h"

#include <algorithm>

namespace keyhole {

namespace {
constexpr const char *kHeads = "heads.json", *kDuoFile = "full_attention_heads.tsv",
                     *kDuoConfig = "config.json", *kHeadKv = "headkv.json";
}

std::vector<std::string> head_file_names() {
    return {kHeads, kDuoFile, kDuoConfig, kHeadKv};
}

std::vector<std::string> write_head_files(const std::filesystem::path& folder, const HeadFiles& files) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / "config.json", ignored) &&
        !std::filesystem::exists(folder / kDuoFile, ignored))
        fail(ErrorCode::wrong_use,
             "{} has a config.json of something else, such as a model; give another folder", folder.string());
    std::vector<std::string> written;
    const auto write = [&](const char* name, const std::string& text) {
        write_text_file(folder / name, text);
        written.emplace_back(name);
    };
    std::vector<CachePart> parts;
    for (const PartEffect& effect : files.found.effects) parts.push_back(effect.part);
    if (const HeadTable table = head_table(files.layout, parts, files.tokens, files.total.context);
        !table.empty())
        write(kHeads, head_file_text(table, files.made_by));
    write(kDuoFile, duo_text(files.layout, files.found));
    const int rest = files.total.rest,
              sinks = std::clamp(files.sinks > 0 ? files.sinks : kGroupSinks, 0, std::max(0, rest - 1));
    write(kDuoConfig, duo_config_text(sinks, rest - sinks));
    if (!files.found.gains.empty()) write(kHeadKv, headkv_text(files.found));
    return written;
}

}  // namespace keyhole
