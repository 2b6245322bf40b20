#include "app/cli/sweep_parts.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/eval/sweep_grid.h"

#include <algorithm>

namespace keyhole {

namespace {

/// Returns the lengths of a needle map: as asked, or five doublings up to the model's context.
std::vector<int> map_lengths(const SweepOptions& options, const Model& model) {
    std::vector<int> lengths;
    const int n_ctx = model.config().n_ctx;
    if (options.lengths.empty())
        for (int length = std::max(n_ctx / 16, 64); length <= n_ctx; length *= 2) lengths.push_back(length);
    for (const std::string& text :
         options.lengths.empty() ? std::vector<std::string>{} : parse_values("--lengths", options.lengths)) {
        const auto length = number_from_text<int>(text, 2);
        if (!length || *length > n_ctx)
            fail(ErrorCode::wrong_use, "--lengths: '{}' is no number of tokens from 2 to the context, {}",
                 shown_text(text), n_ctx);
        lengths.push_back(*length);
    }
    return lengths;
}

std::vector<int> map_depths(const SweepOptions& options) {
    std::vector<int> depths;
    for (std::string text : parse_values("--depths", options.depths.empty() ? "0..100+25" : options.depths)) {
        if (text.ends_with('%')) text.pop_back();
        const auto depth = number_from_text<int>(text, 0);
        if (!depth || *depth > 100)
            fail(ErrorCode::wrong_use,
                 "--depths: '{}' is no share of the text; write whole numbers, 0 to 100", shown_text(text));
        depths.push_back(*depth);
    }
    return depths;
}

/// Returns the cells of a needle map, each with its own questions.
std::vector<SweepPart> map_parts(const SweepOptions& options, const std::shared_ptr<const Model>& model) {
    std::vector<SweepPart> parts;
    for (const int length : map_lengths(options, *model))
        for (const int depth : map_depths(options)) {
            EvalOptions cell = options.eval;
            cell.context = length;
            // The text before the needle is `depth` per cent of it; make_task() keeps the needle in the text.
            const int distance = std::clamp(length - length * depth / 100, 1, length - 1);
            cell.distance = fmt::format("{}", distance);
            parts.push_back({cell.questions(model).front(), length, length, depth});
        }
    return parts;
}

}  // namespace

std::vector<SweepPart> sweep_parts(const SweepOptions& options, const std::shared_ptr<const Model>& model) {
    std::vector<SweepPart> parts;
    if (options.map)
        parts = map_parts(options, model);
    else
        for (QuestionSet& set : options.eval.questions(model))
            parts.push_back({std::move(set), options.eval.context_of(*model), 0, 0});
    for (const SweepPart& part : parts) {
        try {
            (void)part.set.make(0);
        } catch (const Error& error) {
            if (part.length == 0 || error.code() != ErrorCode::wrong_use) throw;
            fail(ErrorCode::wrong_use, "--lengths {}: {}", part.length, error.what());
        }
    }
    return parts;
}

void check_map(const SweepOptions& options) {
    if (!options.map) {
        if (!options.lengths.empty() || !options.depths.empty())
            fail(ErrorCode::wrong_use, "--lengths and --depths are of a map; give --map with them");
        if (options.varies.empty() && options.models.size() < 2 && options.eval.typed_lanes().size() < 2)
            fail(ErrorCode::wrong_use,
                 "there is one lane, and nothing varies; give several --lane SPEC, --vary KEY=VALUES, --map, "
                 "or several models: --model A --model B");
        return;
    }
    const std::vector<TaskKind> kinds =
        options.eval.task.empty() ? std::vector<TaskKind>{} : parse_tasks(options.eval.task);
    if (kinds.size() != 1 || !has_distance(kinds.front()))
        fail(ErrorCode::wrong_use, "--map shows one task whose place can be chosen; give --task needle");
    if (options.eval.ask_when == "both")
        fail(ErrorCode::wrong_use, "--map shows one way to ask; give --ask-when before or after");
    if (!options.eval.distance.empty() || options.eval.context > 0)
        fail(ErrorCode::wrong_use,
             "--map takes places and lengths from --depths and --lengths, not from --distance or --context");
}

}  // namespace keyhole
