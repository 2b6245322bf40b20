#include "app/models/catalog.h"

#include "app/base/assets.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/user_folder.h"
#include "engine/base/utf8.h"
#include "engine/policy/lane_spec.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <system_error>
#include <utility>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostFileBytes = 1 << 20, kMostModels = 1000, kMostField = 1000, kMostOpenLanes = 64,
                      kMostPath = 4096, kMostParts = 64;
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

PythonPackage read_package(const JsonField& in) {
    PythonPackage package;
    package.name = in["name"].text(kMostField);
    package.version = in["version"].text(kMostField);
    for (const char* key : {"name", "version"})
        if (!is_plain_name(in[key].text(kMostField)))
            in[key].wanted("lower-case letters, digits, '-', '_' and '.'");
    package.member = in["member"].text(kMostField);
    package.bytes = at_least_one(in["bytes"]);
    if (const std::optional<JsonField> url = in.find("url")) {
        package.url = url->text(kMostField);
        if (!package.url.starts_with("https://")) url->wanted("an address that begins with https://");
    }
    return package;
}

/// The packages of a model in parts.
void read_packages(const JsonField& in, CatalogModel& model) {
    const std::size_t n = in.size(kMostParts);
    if (n == 0) in.wanted("at least one package");
    model.package = read_package(in.at(0));
    for (std::size_t i = 1; i < n; ++i) model.more_packages.push_back(read_package(in.at(i)));
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
    if (const std::optional<JsonField> from = in.find("package")) model.package = read_package(*from);
    if (const std::optional<JsonField> from = in.find("packages")) read_packages(*from, model);
    if (const std::optional<JsonField> terms = in.find("terms")) {
        model.terms = terms->text(kMostField);
        if (!is_plain_name(model.terms.string())) terms->wanted("the name of a text in assets/models");
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

std::uint64_t CatalogModel::download_bytes() const {
    std::uint64_t n_bytes = package ? package->bytes : 0;
    for (const PythonPackage& part : more_packages) n_bytes += part.bytes;
    return n_bytes;
}

namespace {

fs::path own_list() {
    const fs::path folder = got_models_folder();
    return folder.empty() ? folder : folder / "own.json";
}

std::vector<CatalogModel> shipped_catalog() {
    const fs::path file = find_assets() / "models" / "catalog.json";
    std::error_code error;
    return fs::exists(file, error) ? read_catalog(file) : std::vector<CatalogModel>();
}

std::vector<CatalogModel> added_models() {
    const fs::path file = own_list();
    std::error_code error;
    if (file.empty() || !fs::exists(file, error)) return {};
    const std::string name = file.string();
    const nlohmann::json root = parse_json(read_text_file(file, kMostFileBytes), name);
    const JsonField models = JsonField(root, name)["models"];
    std::vector<CatalogModel> added;
    for (std::size_t i = 0, n = models.size(kMostModels); i < n; ++i) {
        const JsonField in = models.at(i);
        CatalogModel& model = added.emplace_back();
        model.name = in["name"].text(kMostField);
        if (!is_plain_name(model.name)) in["name"].wanted("lower-case letters, digits, '-', '_' and '.'");
        model.shows = in["shows"].text(kMostField);
        model.parameters = at_least_one(in["parameters"]);
        model.bytes = at_least_one(in["bytes"]);
        model.license = "your own file";
        model.source = model.own = in["path"].text(kMostPath);
    }
    return added;
}

void write_added(const std::vector<CatalogModel>& added) {
    const fs::path file = own_list();
    if (file.empty())
        fail(ErrorCode::io, "cannot keep the list of your models: neither XDG_CACHE_HOME nor HOME is set");
    nlohmann::json models = nlohmann::json::array();
    for (const CatalogModel& model : added)
        models.push_back({{"name", model.name},
                          {"shows", model.shows},
                          {"parameters", model.parameters},
                          {"bytes", model.bytes},
                          {"path", model.own.string()}});
    std::error_code error;
    fs::create_directories(file.parent_path(), error);
    write_text_file(file, nlohmann::json{{"models", models}}.dump(1, ' ', false) + "\n");
}

}  // namespace

std::vector<CatalogModel> own_catalog() {
    std::vector<CatalogModel> catalog = shipped_catalog();
    for (CatalogModel& model : added_models())
        if (find_in_catalog(catalog, model.name) == nullptr) catalog.push_back(std::move(model));
    return catalog;
}

void add_own_model(const CatalogModel& model) {
    if (!is_plain_name(model.name))
        fail(ErrorCode::wrong_use,
             "'{}' cannot be a model's name: wanted lower-case letters, digits, '-', '_' and '.'; choose "
             "another with --name",
             shown_text(model.name));
    if (find_invalid_utf8(model.own.string()) != std::string::npos)
        fail(ErrorCode::wrong_use, "cannot add {}: its path is no UTF-8; move it",
             shown_text(model.own.string()));
    if (find_in_catalog(own_catalog(), model.name) != nullptr)
        fail(ErrorCode::wrong_use, "the catalogue has a model {} already; choose another name with --name",
             model.name);
    std::vector<CatalogModel> added = added_models();
    added.push_back(model);
    write_added(added);
}

bool forget_own_model(std::string_view name) {
    std::vector<CatalogModel> added = added_models();
    if (std::erase_if(added, [&](const CatalogModel& model) { return model.name == name; }) == 0)
        return false;
    write_added(added);
    return true;
}

std::string name_for(const fs::path& path) {
    const fs::path whole = path.has_filename() ? path : path.parent_path();
    std::string name = (whole.extension() == ".gguf" ? whole.stem() : whole.filename()).string();
    for (char& c : name) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        if (!is_plain_name("a" + std::string(1, c))) c = '-';
    }
    name.erase(0, std::min(name.find_first_not_of("-."), name.size()));
    return name.empty() ? "model" : name;
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
    if (!model.own.empty()) return model.own;
    if (!model.file.empty()) return find_assets() / "models" / model.file;
    const fs::path folder = got_models_folder();
    return folder.empty() ? folder : folder / (model.name + ".gguf");
}

std::optional<fs::path> path_if_here(const CatalogModel& model) {
    const fs::path weights = weights_of(model);
    std::error_code error;
    if (!model.own.empty()) return fs::exists(weights, error) ? std::optional(weights) : std::nullopt;
    const std::uintmax_t size = fs::file_size(weights, error);
    if (error || size != model.bytes) return std::nullopt;
    return model.file.empty() ? weights : weights.parent_path();
}

std::string megabytes_text(std::uint64_t n_bytes) {
    return fmt::format("{:.0f} MB", std::max(1.0, 1e-6 * static_cast<double>(n_bytes)));
}

std::string terms_text(const CatalogModel& model) {
    if (!model.package) return fmt::format("{}, {}", megabytes_text(model.bytes), model.license);
    const std::size_t n = 1 + model.more_packages.size();
    return fmt::format("{} to download, {}, {} {} {}", megabytes_text(model.download_bytes()), model.license,
                       n == 1 ? "Python package" : fmt::format("{} Python packages from", n),
                       model.package->name, model.package->version);
}

}  // namespace keyhole
