#include "engine/policy/head_file.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_field.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/number.h"
#include "engine/policy/allocation.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace keyhole {
namespace {

namespace fs = std::filesystem;

constexpr JsonBounds kHeadBounds{std::size_t{64} << 20, 8'000'000};
constexpr std::string_view kOwnForm = R"({"head_budgets": 1, "layers": [[64, "all"], ...]})";

[[noreturn]] void refuse_heads(const fs::path& path, std::string_view what, std::string_view advice) {
    fail(ErrorCode::bad_file, "cannot read the budgets of heads in {}: {}; {}", printable_text(path.string()),
         what, advice);
}

// --- Keyhole's own -----------------------------------------------------------------------------------------

HeadBudget own_cell(const JsonField& field, const nlohmann::json& value) {
    std::optional<HeadBudget> budget;
    if (value.is_string()) budget = head_budget_of(value.get_ref<const std::string&>());
    if (value.is_number()) budget = HeadBudget{HeadBudget::Unit::tokens, value.get<double>()};
    if (!budget || !head_table_fault({1, {*budget}}).empty())
        field.wanted("a number of tokens, \"all\", \"25%\" or \"1.5x\"");
    return *budget;
}

HeadTable read_own(const fs::path& path, const nlohmann::json& json) {
    const std::string name = path.string();
    const JsonField root(json, name);
    (void)root["head_budgets"].whole(1, 1);
    if (const auto about = root.find("about")) (void)about->text(std::size_t{1} << 16);
    const JsonField layers = root["layers"];
    const std::size_t n_layers = layers.size(kMostHeadCells);
    if (n_layers == 0) layers.wanted("a list of budgets for each layer");
    HeadTable table;
    for (std::size_t l = 0; l < n_layers; ++l) {
        const JsonField row = layers.at(l);
        const std::size_t n = row.size(kMostHeadCells);
        if (l == 0) table.n_columns = static_cast<int>(n);
        if (n == 0 || n != to_index(table.n_columns))
            row.bad(fmt::format("it has {} budgets and layer 0 has {}; all layers have as many, one or more",
                                n, table.n_columns));
        if (table.cells.size() + n > kMostHeadCells)
            layers.wanted(fmt::format("at most {} budgets", kMostHeadCells));
        for (std::size_t h = 0; h < n; ++h) table.cells.push_back(own_cell(row.at(h), json["layers"][l][h]));
    }
    return table;
}

// --- HeadKV ------------------------------------------------------------------------------------------------

/// Reads "layer-head".
std::optional<std::pair<int, int>> place_of_head(std::string_view key) {
    constexpr int kMost = static_cast<int>(kMostHeadCells) - 1;
    const std::size_t dash = key.find('-');
    if (dash == std::string_view::npos) return std::nullopt;
    const auto layer = number_from_text<int>(key.substr(0, dash), 0, kMost),
               head = number_from_text<int>(key.substr(dash + 1), 0, kMost);
    if (!layer || !head) return std::nullopt;
    return std::pair{*layer, *head};
}

double mean_of_list(const JsonField& list) {
    const std::size_t n = list.size();
    if (n == 0) list.wanted("one number or more");
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += list.at(i).number(0, 1e30);
    return sum / static_cast<double>(n);
}

/// Returns times of the budget: 1 - 1/beta, and 1/beta in proportion to the scores. They are ten-thousandths
/// whose mean is 1.
HeadTable table_of_scores(const fs::path& path, [[maybe_unused]] int n_layers, int n_heads,
                          const std::vector<double>& scores, double beta) {
    constexpr double kParts = 10000;
    const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
    if (!(sum > 0) || !std::isfinite(sum))
        refuse_heads(path, "its scores have no sum that shares can be taken of", "give scores above 0");
    const double n = static_cast<double>(scores.size());
    std::vector<double> parts;
    for (const double score : scores) parts.push_back(kParts * (1 - 1 / beta + score / sum * n / beta));
    HeadTable table{n_heads, {}};
    for (const int part : by_largest_remainder(parts))
        table.cells.push_back({HeadBudget::Unit::times, part / kParts});
    KH_ASSERT(table.n_layers() == n_layers, "{} layers of {}", table.n_layers(), n_layers);
    return table;
}

HeadTable read_head_scores(const fs::path& path, const nlohmann::json& json, double beta) {
    const std::string name = path.string();
    const JsonField root(json, name);
    int n_layers = 0, n_heads = 0;
    for (const auto& [key, value] : json.items()) {
        const auto place = place_of_head(key);
        if (!place)
            refuse_heads(path,
                         fmt::format("'{}' is no 'layer-head', the keys of HeadKV's scores", shown_text(key)),
                         fmt::format("Keyhole's own form is {}", kOwnForm));
        n_layers = std::max(n_layers, place->first + 1);
        n_heads = std::max(n_heads, place->second + 1);
    }
    const std::int64_t n_cells = std::int64_t{n_layers} * n_heads;
    if (n_cells != static_cast<std::int64_t>(json.size()))
        refuse_heads(path,
                     fmt::format("it has scores of {} heads, and {} layers of {} heads are {}", json.size(),
                                 n_layers, n_heads, n_cells),
                     "give a score for each head");
    std::vector<double> scores;
    for (int layer = 0; layer < n_layers; ++layer)
        for (int head = 0; head < n_heads; ++head)
            scores.push_back(mean_of_list(root[fmt::format("{}-{}", layer, head).c_str()]));
    return table_of_scores(path, n_layers, n_heads, scores, beta);
}

// --- DuoAttention ------------------------------------------------------------------------------------------

/// Returns which heads keep all.
std::vector<bool> retrieval_heads(const std::vector<double>& alphas, const HeadFileForm& form) {
    std::vector<bool> keeps_all(alphas.size());
    if (!form.sparsity) {
        for (std::size_t i = 0; i < alphas.size(); ++i) keeps_all[i] = alphas[i] >= form.threshold;
        return keeps_all;
    }
    std::vector<std::size_t> order(alphas.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return alphas[a] < alphas[b]; });
    const auto n_streaming =
        static_cast<std::size_t>(std::lround(*form.sparsity * static_cast<double>(alphas.size())));
    for (std::size_t i = n_streaming; i < order.size(); ++i) keeps_all[order[i]] = true;
    return keeps_all;
}

HeadTable read_alphas(const fs::path& path, std::string_view text, const HeadFileForm& form) {
    HeadTable table;
    std::vector<double> alphas;
    int line = 0;
    while (!text.empty()) {
        ++line;
        std::string_view of_line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(of_line.size() + 1, text.size()));
        int n = 0;
        for (std::size_t at = 0; (at = of_line.find_first_not_of(" \t\r", at)) != std::string_view::npos;
             ++n) {
            const std::size_t end = std::min(of_line.find_first_of(" \t\r", at), of_line.size());
            const std::string_view word = of_line.substr(at, end - at);
            const auto alpha = number_from_text<double>(word);
            constexpr double kSlack = 0.5;  // training leaves numbers a little outside
            if (!alpha || *alpha < -kSlack || *alpha > 1 + kSlack)
                refuse_heads(path,
                             fmt::format("line {}: '{}' is no number from 0 to 1, as DuoAttention's files "
                                         "have them",
                                         line, shown_text(word)),
                             fmt::format("for budgets in tokens take Keyhole's own form, {}", kOwnForm));
            if (alphas.size() == kMostHeadCells)
                refuse_heads(path, fmt::format("it has more than {} numbers", kMostHeadCells),
                             "give the table of one model");
            alphas.push_back(std::clamp(*alpha, 0.0, 1.0));
            at = end;
        }
        if (n == 0) continue;
        if (table.n_columns == 0) table.n_columns = n;
        if (n != table.n_columns)
            refuse_heads(
                path,
                fmt::format("line {} has {} numbers and the lines before have {}", line, n, table.n_columns),
                "give a line for each layer, with a number for each KV head");
    }
    if (alphas.empty()) refuse_heads(path, "it is empty", "give a line of numbers for each layer");
    for (const bool keeps_all : retrieval_heads(alphas, form))
        table.cells.push_back(keeps_all ? HeadBudget{HeadBudget::Unit::all, 0} : HeadBudget{});
    return table;
}

/// Reads `0.25` or `25%`.
std::optional<double> share_of_text(std::string_view text) {
    const bool percent = text.ends_with('%');
    if (percent) text.remove_suffix(1);
    const auto value = number_from_text<double>(text, 0, percent ? 100 : 1);
    return value ? std::optional(percent ? *value / 100 : *value) : std::nullopt;
}

/// Sets a word after the file's name. Returns its fault; empty: none.
std::string set_form(std::string_view word, HeadFileForm& form) {
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "beta") {
        const auto beta = number_from_text<double>(value, 1, 1e6);
        if (!beta) return "beta is 1 or more: 1/beta of the budgets goes by score";
        form.beta = *beta;
        return {};
    }
    const auto share = share_of_text(value);
    if (!share) return fmt::format("{} is a share, from 0 to 1 or from 0% to 100%", name);
    if (name == "sparsity") form.sparsity = share;
    if (name == "threshold") form.threshold = *share;
    return {};
}

bool is_form_word(std::string_view word) {
    constexpr std::array<std::string_view, 3> kNames = {"sparsity=", "threshold=", "beta="};
    return std::any_of(kNames.begin(), kNames.end(),
                       [&](std::string_view name) { return word.starts_with(name); });
}

}  // namespace

HeadTable read_head_file(const fs::path& given, const HeadFileForm& form) {
    std::error_code ignored;
    const fs::path path = fs::is_directory(given, ignored) ? given / "full_attention_heads.tsv" : given;
    const std::string text = read_text_file(path, kHeadBounds.bytes);
    if (text.starts_with("PK"))
        refuse_heads(path, "it is a zip of pickled tensors (.pt), which may run code when it is read",
                     "save its numbers as text, with numpy.savetxt");
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || text[first] != '{') return read_alphas(path, text, form);
    const nlohmann::json json = json_object_of(text, path, kHeadBounds.values);
    return json.contains("head_budgets") ? read_own(path, json) : read_head_scores(path, json, form.beta);
}

std::string head_file_text(const HeadTable& table, std::string_view about) {
    std::string text = fmt::format("{{\"head_budgets\": 1,\n \"about\": {},\n \"layers\": [",
                                   nlohmann::json(printable_text(about)).dump());
    for (int layer = 0; layer < table.n_layers(); ++layer) {
        text += layer == 0 ? "\n  [" : ",\n  [";
        for (int column = 0; column < table.n_columns; ++column) {
            const HeadBudget& cell = table.at(layer, column);
            const bool bare = cell.unit == HeadBudget::Unit::tokens;
            const std::string value = head_budget_text(cell);
            text += fmt::format("{}{}", column == 0 ? "" : ", ", bare ? value : '"' + value + '"');
        }
        text += "]";
    }
    return text + "]}\n";
}

HeadTable head_file_of(std::string_view text, std::string* fault) {
    HeadFileForm form;
    for (std::size_t blank; (blank = text.find_last_of(' ')) != std::string_view::npos;) {
        const std::string_view word = text.substr(blank + 1);
        if (!is_form_word(word)) break;
        if (std::string what = set_form(word, form); !what.empty()) {
            if (fault != nullptr) *fault = std::move(what);
            return {};
        }
        text = text.substr(0, text.find_last_not_of(' ', blank) + 1);
    }
    return read_head_file(fs::path(std::string(text)), form);
}

}  // namespace keyhole
