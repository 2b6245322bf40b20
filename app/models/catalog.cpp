#include "app/models/catalog.h"

#include "app/base/assets.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/mapped_file.h"
#include "engine/base/user_folder.h"
#include "engine/policy/lane_spec.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <system_error>
#include <utility>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostFileBytes = 1 << 20, kMostModels = 1000, kMostField = 1000, kMostOpenLanes = 64;
constexpr std::int64_t kMostModelBytes = std::int64_t{1} << 50;

bool is_plain_name(const std::string& text) {
    return !text.empty() && text.front() != '.' && text.front() != '-' &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.") == std::string::npos;
}

bool is_sha256(const std::string& text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::uint64_t at_least_one(const JsonField& field) {
    return static_cast<std::uint64_t>(field.whole(1, kMostModelBytes));
}

CatalogModel read_model(const JsonField& in) {
    const auto text = [&](const char* key) { return in[key].text(kMostField); };
    CatalogModel model;
    model.name = text("name");
    // The name becomes a file's name and part of a command.
    if (!is_plain_name(model.name)) in["name"].wanted("lower-case letters, digits, '-', '_' and '.'");
    model.shows = text("shows");
    model.parameters = at_least_one(in["parameters"]);
    model.bytes = at_least_one(in["bytes"]);
    model.license = text("license");
    model.source = text("source");
    model.sha256 = text("sha256");
    if (!is_sha256(model.sha256)) in["sha256"].wanted("64 lower-case hexadecimal digits");
    if (const std::optional<JsonField> file = in.find("file")) model.file = file->text(kMostField);
    if (const std::optional<JsonField> prompt = in.find("prompt")) {
        model.prompt = prompt->text(kMostField);
        if (!is_plain_name(model.prompt)) prompt->wanted("the name of a file in assets/prompts");
    }
    if (const std::optional<JsonField> lanes = in.find("lanes"))
        for (std::size_t i = 0, n = lanes->size(kMostOpenLanes); i < n; ++i) {
            model.lanes.push_back(lanes->at(i).text(kMostField));
            try {
                (void)parse_stored_lane_spec(model.lanes.back());
            } catch (const Error& error) {
                lanes->at(i).bad(error.what());
            }
        }
    if (const std::optional<JsonField> from = in.find("package")) {
        PythonPackage& package = model.package.emplace();
        package.name = (*from)["name"].text(kMostField);
        package.version = (*from)["version"].text(kMostField);
        for (const char* key : {"name", "version"})
            if (!is_plain_name((*from)[key].text(kMostField)))
                (*from)[key].wanted("lower-case letters, digits, '-', '_' and '.'");
        package.member = (*from)["member"].text(kMostField);
        package.bytes = at_least_one((*from)["bytes"]);
        if (const std::optional<JsonField> url = from->find("url")) {
            package.url = url->text(kMostField);
            if (!package.url.starts_with("https://")) url->wanted("an address that begins with https://");
        }
    }
    if (model.file.empty() != model.package.has_value())
        in.bad("a model has either a file of Keyhole's or a package to get it from");
    return model;
}

}  // namespace

std::vector<CatalogModel> read_catalog(const fs::path& file) {
    const std::string name = file.string();
    const nlohmann::json root = parse_json(read_text_file(file, kMostFileBytes), name);
    const JsonField models = JsonField(root, name)["models"];
    std::vector<CatalogModel> catalog;
    for (std::size_t i = 0, n = models.size(kMostModels); i < n; ++i) {
        CatalogModel model = read_model(models.at(i));
        if (find_in_catalog(catalog, model.name) != nullptr)
            models.at(i)["name"].bad("another model has this name");
        catalog.push_back(std::move(model));
    }
    return catalog;
}

std::vector<CatalogModel> own_catalog() {
    const fs::path file = find_assets() / "models" / "catalog.json";
    std::error_code error;
    return fs::exists(file, error) ? read_catalog(file) : std::vector<CatalogModel>();
}

const CatalogModel* find_in_catalog(std::span<const CatalogModel> catalog, std::string_view name) {
    const auto found =
        std::find_if(catalog.begin(), catalog.end(), [&](const CatalogModel& m) { return m.name == name; });
    return found == catalog.end() ? nullptr : &*found;
}

const CatalogModel* find_by_path(std::span<const CatalogModel> catalog, const fs::path& path) {
    const auto found = std::find_if(catalog.begin(), catalog.end(), [&](const CatalogModel& m) {
        const std::optional<fs::path> here = path_if_here(m);
        std::error_code ignored;
        return here && (*here == path || fs::equivalent(*here, path, ignored));
    });
    return found == catalog.end() ? nullptr : &*found;
}

fs::path prompt_of(const CatalogModel& model) {
    return model.prompt.empty() ? fs::path() : find_assets() / "prompts" / model.prompt;
}

fs::path demo_story() {
    return find_assets() / "prompts" / "garden-gate.txt";
}

fs::path story_of(const CatalogModel& model) {
    const fs::path own = prompt_of(model);
    return own.empty() ? demo_story() : own;
}

fs::path got_models_folder() {
    const fs::path cache = user_folder(UserFolder::cache);
    return cache.empty() ? cache : cache / "models";
}

fs::path weights_of(const CatalogModel& model) {
    if (!model.file.empty()) return find_assets() / "models" / model.file;
    const fs::path folder = got_models_folder();
    return folder.empty() ? folder : folder / (model.name + ".gguf");
}

std::optional<fs::path> path_if_here(const CatalogModel& model) {
    const fs::path weights = weights_of(model);
    std::error_code error;
    const std::uintmax_t size = fs::file_size(weights, error);
    if (error || size != model.bytes) return std::nullopt;
    return model.file.empty() ? weights : weights.parent_path();
}

std::string megabytes_text(std::uint64_t n_bytes) {
    return fmt::format("{:.0f} MB", std::max(1.0, 1e-6 * static_cast<double>(n_bytes)));
}

std::string terms_text(const CatalogModel& model) {
    if (!model.package) return fmt::format("{}, {}", megabytes_text(model.bytes), model.license);
    return fmt::format("{} to download, {}, Python package {} {}", megabytes_text(model.package->bytes),
                       model.license, model.package->name, model.package->version);
}

}  // namespace keyhole
