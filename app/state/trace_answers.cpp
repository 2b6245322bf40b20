#include "app/state/trace_answers.h"

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/json_text.h"
#include "engine/policy/lane_spec.h"

#include <nlohmann/json.hpp>

#include <optional>

namespace keyhole {

namespace {

constexpr std::size_t kMostAnswers = 10'000, kMostTokens = 100'000, kMostBytes = 1 << 20;

LaneAnswer answer_of(const JsonField& in) {
    LaneAnswer answer;
    answer.complete = true;
    answer.lane_id = in["lane_id"].integer(0, 1 << 30);
    answer.spec = in["spec"].text(kMostBytes);
    try {
        if (!answer.spec.empty()) (void)parse_stored_lane_spec(answer.spec);
    } catch (const Error&) {
        in["spec"].wanted("a lane spec");
    }
    if (const std::optional<JsonField> by_hand = in.find("by_hand"))  // older files have none
        answer.n_by_hand = by_hand->integer(0, 1 << 30);
    answer.text = in["text"].text(kMostBytes);
    answer.cut = in["cut"].flag();
    answer.failure = in["failure"].text(kMostBytes);
    answer.turn = in["turn"].integer(-1, 1 << 30);
    const JsonField tokens = in["tokens"];
    for (std::size_t i = 0, n = tokens.size(kMostTokens); i < n; ++i)
        answer.tokens.push_back(tokens.at(i).integer(0, 1 << 30));
    return answer;
}

}  // namespace

std::string format_trace_answers(const TraceAnswers& answers) {
    nlohmann::json out = {{"right", answers.right}, {"answers", nlohmann::json::array()}};
    for (const LaneAnswer& answer : answers.answers)
        if (answer.complete)
            out["answers"].push_back({{"lane_id", answer.lane_id},
                                      {"spec", answer.spec},
                                      {"tokens", answer.tokens},
                                      {"text", answer.text},
                                      {"cut", answer.cut},
                                      {"failure", answer.failure},
                                      {"by_hand", answer.n_by_hand},
                                      {"turn", answer.turn}});
    if (answers.watched) out["watched"] = {answers.watched->first, answers.watched->last};
    if (out["answers"].empty() && answers.right.empty() && !answers.watched) return "";
    return out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

TraceAnswers parse_trace_answers(const std::string& text, const std::string& name) {
    TraceAnswers found;
    if (text.empty()) return found;
    const nlohmann::json root = parse_json(text, name);
    const JsonField in(root, name), answers = in["answers"];
    found.right = in["right"].text(kMostBytes);
    if (const std::optional<JsonField> watched = in.find("watched")) {  // older files have none
        const int first = watched->at(0).integer(0, 1 << 30);
        found.watched = TokenSpan{first, watched->at(1).integer(first, 1 << 30)};
    }
    for (std::size_t i = 0, n = answers.size(kMostAnswers); i < n; ++i)
        found.answers.push_back(answer_of(answers.at(i)));
    return found;
}

}  // namespace keyhole
