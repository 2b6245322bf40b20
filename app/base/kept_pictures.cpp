#include "app/base/kept_pictures.h"

#include "app/base/assets.h"
#include "engine/base/index.h"
#include "engine/base/json_field.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace keyhole {

namespace {

constexpr int kMostTokens = 1 << 14;
constexpr std::size_t kMostKeptText = 4096;

std::vector<int> positions_in(const JsonField& field, int n_tokens) {
    std::vector<int> positions;
    for (std::size_t i = 0; i < field.size(to_index(n_tokens)); ++i) {
        positions.push_back(field.at(i).integer(0, n_tokens - 1));
        if (i > 0 && positions[i] <= positions[i - 1]) field.at(i).wanted("a later position");
    }
    return positions;
}

}  // namespace

const KeptPicture* KeptPictures::find(std::string_view preset) const {
    const auto found = std::ranges::find(presets, preset, &KeptPicture::preset);
    return found == presets.end() ? nullptr : &*found;
}

nlohmann::json to_json(const KeptPictures& pictures) {
    nlohmann::json list = nlohmann::json::array();
    for (const KeptPicture& one : pictures.presets) {
        nlohmann::json json = {{"preset", one.preset}};
        if (one.why_not.empty())
            json["kept"] = one.positions;
        else
            json["why_not"] = one.why_not;
        list.push_back(std::move(json));
    }
    return {{"model", pictures.model},     {"prompt", pictures.prompt},
            {"budget", pictures.budget},   {"layer", pictures.layer},
            {"head", pictures.head},       {"tokens", pictures.tokens},
            {"watched", pictures.watched}, {"presets", list}};
}

KeptPictures parse_kept_pictures(std::string_view text, const std::string& name) {
    const nlohmann::json json = parse_json(text, name);
    const JsonField root(json, name);
    KeptPictures pictures;
    pictures.model = root["model"].text(kMostKeptText);
    pictures.prompt = root["prompt"].text(kMostKeptText);
    pictures.budget = root["budget"].integer(1, kMostTokens);
    pictures.layer = root["layer"].integer(0, 1 << 12);
    pictures.head = root["head"].integer(0, 1 << 12);
    const JsonField tokens = root["tokens"], presets = root["presets"];
    for (std::size_t i = 0; i < tokens.size(kMostTokens); ++i)
        pictures.tokens.push_back(tokens.at(i).text(kMostKeptText));
    const int n = static_cast<int>(pictures.tokens.size());
    pictures.watched = positions_in(root["watched"], n);
    for (std::size_t i = 0; i < presets.size(1000); ++i) {
        const JsonField one = presets.at(i);
        KeptPicture& kept = pictures.presets.emplace_back();
        kept.preset = one["preset"].text(kMostKeptText);
        if (const auto why = one.find("why_not"))
            kept.why_not = why->text(kMostKeptText);
        else
            kept.positions = positions_in(one["kept"], n);
    }
    return pictures;
}

KeptPictures shipped_kept_pictures() {
    const std::filesystem::path file = find_assets() / "policies" / "kept.json";
    return parse_kept_pictures(read_text_file(file, std::size_t{1} << 22), file.string());
}

std::vector<float> kept_shares(const KeptPictures& pictures, const KeptPicture& kept, int width) {
    const std::size_t n = pictures.tokens.size(), w = to_index(std::max(width, 1));
    std::vector<float> shares(w, 0);
    std::vector<char> is_kept(n, 0);
    for (const int p : kept.positions) is_kept[to_index(p)] = 1;
    for (std::size_t i = 0; i < w; ++i) {
        const std::size_t first = i * n / w, last = std::max((i + 1) * n / w, first + 1);
        for (std::size_t p = first; p < std::min(last, n); ++p)
            shares[i] += is_kept[p] != 0 ? 1.0f / static_cast<float>(last - first) : 0;
    }
    return shares;
}

}  // namespace keyhole
