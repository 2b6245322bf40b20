// The panes that ScreenCheck reads.
#include "tests/window/screen_check.h"
#include "tests/window/screen_words.h"

#include "engine/base/index.h"
#include "engine/figure/reduce.h"
#include "engine/run/run_settings.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

namespace keyhole::testing {

/// "1 h2o · old settings": what is shown is not what the lane is to do. Stands wherever it is so, and nowhere
/// else.
void ScreenCheck::read_marks() {
    for (const auto& [pane, texts] : panes_)
        for (const ScreenText& text : texts) {
            if (const auto mark = match(text.text, "^(\\d+) ([a-z].*) · (old settings|run before)"))
                state_name(std::stoi((*mark)[1]), pane, (*mark)[2]);
            if (const auto copy = match(text.text, "^(\\d+) [a-z].* · (lane (\\d+) )?until its"))
                parents_[std::stoi((*copy)[1])] = (*copy)[3].matched ? std::stoi((*copy)[3]) : -1;
        }
    const EngineStatus& status = archive_.status();
    if (!settled_ || !app_.run.live() || status.run_id != truth_->run().id) return;
    const std::vector<LaneSpec> wanted = settings_at(status.run).lane_specs();
    const int lane = app_.view.lane;
    if (to_index(lane) >= wanted.size() || to_index(lane) >= status.lane_ids.size()) return;
    const std::optional<int> known = truth_->lane_from_id(status.lane_ids[to_index(lane)]);
    const LaneRecord* its = known ? truth_->lane_record(row_, *known) : nullptr;
    if (its == nullptr) return;
    const bool old =
        format_lane_spec(wanted[to_index(lane)]) != format_lane_spec(parse_lane_spec(its->info->spec));
    for (const char* pane : {"text", "heatmap", "lanes"}) {
        if (!panes_.contains(pane)) continue;
        const bool marked = std::ranges::any_of(panes_[pane], [&](const ScreenText& text) {
            const auto of = match(text.text, "^(\\d+) [a-z].* · old se");
            const bool card = std::string_view(pane) == "lanes" && text.text.starts_with("old settings: ");
            return card ? old : of && std::stoi((*of)[1]) == lane;  // other cards have marks too
        });
        if (marked != old)
            faults_.push_back(fmt::format("{}: lane {} has {}settings of '{}' and is to have '{}'", pane,
                                          lane, marked ? "the mark of old " : "no mark of old ",
                                          its->info->spec, format_lane_spec(wanted[to_index(lane)])));
    }
}

/// The cards: "1  h2o", "64 of 370 kept", "same next word as full · KL 0.0123 nats".
void ScreenCheck::read_lanes() {
    struct Card {
        int lane;
        std::string title;
        float left, top;
    };
    std::vector<Card> cards;
    for (const ScreenText& text : panes_["lanes"])
        if (const auto title = match(text.text, "^(\\d+)  (\\S+)$"))
            cards.push_back({std::stoi((*title)[1]), text.text, text.min.x, text.top});
    for (Card& card : cards)  // the settings in which it differs stand below
        for (const ScreenText& text : panes_["lanes"])
            if (text.top > card.top + 8 && text.top < card.top + 30 && std::abs(text.min.x - card.left) < 3 &&
                match(text.text, "^[a-z_@]+="))
                card.title += " " + text.text;
    const auto card_of = [&](const ScreenText& text) {
        return std::find_if(cards.rbegin(), cards.rend(),
                            [&](const Card& any) { return any.top < text.top + 8; });
    };
    for (const ScreenText& text : panes_["lanes"])  // whose numbers stand on the card
        if (const auto mark =
                match(text.text,
                      "^(?:old settings|run before|(?:lane (\\d+)|its state before) until its next step): "
                      "(.*)$")) {
            const auto card = card_of(text);
            if (card == cards.rend()) continue;
            card->title = fmt::format("{} {}", card->lane, (*mark)[2].str());
            if (text.text.find("until its") != std::string::npos)
                parents_[card->lane] = (*mark)[1].matched ? std::stoi((*mark)[1]) : -1;
        }
    for (const ScreenText& text : panes_["lanes"]) {
        const auto card = card_of(text);
        if (card == cards.rend()) continue;
        if (const auto kept = match(text.text, "^(\\d+) of (\\d+)( kept)?$")) {
            state_name(card->lane, "lanes", card->title);
            const int n = std::stoi((*kept)[1]), n_all = std::stoi((*kept)[2]);
            state(card->lane, "lanes", text.text, [this, n, n_all](int known) {
                const double stored = static_cast<double>(record(known)->use.stored_tokens);
                return n_all == row_ + 1 && std::abs(stored / truth_->layout(known).n_kv_heads() - n) < 0.51;
            });
        } else if (const auto kl = match(text.text, "KL (\\S+) nats")) {
            const double value = number((*kl)[1]);
            const bool other = text.text.find("other next") != std::string::npos;
            state_name(card->lane, "lanes", card->title);
            state(card->lane, "lanes", text.text, [this, value, other](int known) {
                const LaneRecord& its = *record(known);
                return its.kl && std::abs(double(*its.kl) - value) < 1e-4 &&
                       (!its.agrees || other != *its.agrees);
            });
        }
    }
}

/// The columns of "Next token": a title, and below it words with their shares.
void ScreenCheck::read_next_tokens() {
    std::set<int> lanes;
    for (const auto& [name, item] : shared_.items)
        if (const auto candidate = match(name, "^candidate (\\d+) 1$"))
            lanes.insert(std::stoi((*candidate)[1]));
    for (const int lane : lanes) {
        const NamedItem& first = shared_.items.at(fmt::format("candidate {} 1", lane));
        float right = 1e9f;
        if (const auto pane = shared_.items.find("pane details"); pane != shared_.items.end())
            right = std::min(right, pane->second.max.x);
        for (const ScreenText& title : panes_["details"]) {
            if (!match(title.text, "^\\d+ [a-z]") || title.top < first.min.y - 60 || title.top > first.min.y)
                continue;
            if (title.min.x > first.min.x + 8)
                right = std::min(right, title.min.x - 3);
            else if (title.min.x > first.min.x - 8)
                state_name(lane, "details", title.text);
        }
        for (std::size_t k = 0; k < 10; ++k) {
            const auto item = shared_.items.find(fmt::format("candidate {} {}", lane, k + 1));
            if (item == shared_.items.end()) break;
            const auto line = texts_in({first.min.x - 4, item->second.min.y}, {right, item->second.max.y});
            if (line.empty()) continue;
            const auto share = match(line.back().text, "([0-9.]+)%?$");
            if (!share) continue;
            const double percent = number((*share)[1]);
            state(lane, "details", fmt::format("next token {}: {} %", k + 1, percent),
                  [this, k, percent](int known) {
                      const std::vector<TopToken>& top = record(known)->top;
                      return k < top.size() && std::abs(std::exp(double(top[k].log_prob)) * 100 - percent) <=
                                                   (percent < 9.95 ? 0.051 : 0.51);
                  });
        }
    }
}

/// "Watched words": "1 h2o  2 % left; 1 of 48 heads hold all of it; first word unlike lane 0's at 371".
void ScreenCheck::read_watched() {
    if (!app_.view.watched || is_ahead()) return;
    const TokenSpan span = *app_.view.watched;
    std::map<float, std::string> lines;
    for (const ScreenText& text : panes_["curves"]) {
        const auto note = match(text.text, "^(\\d+) ([a-z].*?)  +(\\d+) %( left.*)$");
        if (!note) continue;
        const int lane = std::stoi((*note)[1]);
        const std::string share = (*note)[3], rest = (*note)[4];
        state_name(lane, "curves", (*note)[2]);
        state(lane, "curves", "watched words: " + share + " %", [this, span, share](int known) {
            return std::abs(held(*truth_, holder(*truth_, known, row_), span, row_).share * 100 -
                            number(share)) < 0.51;
        });
        if (const auto whole = match(rest, "(\\d+) of (\\d+) heads hold")) {
            const int n = std::stoi((*whole)[1]), n_heads = std::stoi((*whole)[2]);
            state(lane, "curves", rest, [this, span, n, n_heads](int known) {
                const int last = std::min(truth_->last_row(), app_.run.last_row());
                const Held now = held(*truth_, holder(*truth_, known, row_), span, row_),
                           newest = held(*truth_, holder(*truth_, known, last), span, last);
                return n_heads == now.n_heads && (n == now.n_whole || n == newest.n_whole);
            });
        }
    }
}

/// The text of the focused lane: words, and a background that is the brighter the more heads keep them.
void ScreenCheck::read_text() {
    const auto heading = std::ranges::find_if(
        panes_["text"], [](const ScreenText& text) { return match(text.text, "^lane \\d+").has_value(); });
    if (heading == panes_["text"].end()) return;
    const int lane = std::stoi((*match(heading->text, "^lane (\\d+)"))[1]);
    if (lane != app_.view.lane)
        faults_.push_back(fmt::format("text: {}, lane {} is in focus", heading->text, app_.view.lane));
    if (const auto title = match(heading->text, "^lane \\d+ +([a-z].*)$"))
        state_name(lane, "text", (*title)[1]);
    if (app_.view.text_color != TextColor::share || is_ahead()) return;
    const auto part = [](ImU32 color, int shift) { return static_cast<double>(color >> shift & 255); };
    const ImU32 none = theme::colors().kept_by_none, all = theme::colors().kept_by_all;
    int n_read = 0;
    for (int p = row_; p >= 0 && n_read < 24; p -= 1 + (p % 5)) {
        const auto item = shared_.items.find(fmt::format("token {}", p));
        if (item == shared_.items.end()) continue;
        const NamedItem& box = item->second;
        if (box.seen_max.y - box.seen_min.y < 12 || box.seen_max.x - box.seen_min.x < 4) continue;
        const auto color = screen_color(*ImGui::GetDrawData(), {box.min.x + 1.7f, box.min.y + 5.3f});
        if (!color) continue;
        // Channels in which the two ends differ most tell the share.
        const int shift =
            std::abs(part(all, 8) - part(none, 8)) > std::abs(part(all, 16) - part(none, 16)) ? 8 : 16;
        const double u = (part(*color, shift) - part(none, shift)) / (part(all, shift) - part(none, shift));
        if (u < -0.02 || u > 1.02) continue;  // evicted everywhere, or drawn over
        ++n_read;
        state(lane, "text", fmt::format("token {}: kept by {:.0f} % of the heads", p, u * 100),
              [this, p, u](int known) {
                  const int lane_then = holder(*truth_, known, row_);
                  return std::abs(held(*truth_, lane_then, {p, p}, row_).share - u) < 0.03;
              });
    }
}

std::vector<ScreenCheck::AnswerLine> ScreenCheck::answer_lines() const {
    std::vector<AnswerLine> lines;
    for (const auto& [name, item] : shared_.items) {
        const auto lane = match(name, "^answer (\\d+)$");
        if (!lane || item.seen_max.y - item.seen_min.y < 8) continue;
        AnswerLine line{std::stoi((*lane)[1]), "", ""};
        std::vector<ScreenText> texts = texts_in(item.min, {item.max.x + 1, item.max.y});
        // A long answer goes on in next lines.
        std::ranges::stable_sort(texts, {}, [&](const ScreenText& text) {
            return std::floor((text.top - item.min.y) / text.size);
        });
        for (const ScreenText& text : texts) {
            if (text.text == "✓" || text.text == "✗")
                (text.text == "✓" ? line.right : line.wrong) = true;
            else if (line.title.empty())
                line.title = text.text;
            else if (text.text.find("new settings") == std::string::npos)
                line.words += text.text;
        }
        lines.push_back(std::move(line));
    }
    return lines;
}

std::string ScreenCheck::reason() const {
    std::string last;
    float top = 0;
    const auto pane = panes_.find("answers");
    if (pane == panes_.end()) return last;
    for (const ScreenText& text : pane->second)
        if (text.top >= top) top = text.top, last = text.text;
    return last;
}

/// An answer belongs to the settings that its name says; the engine has published it for a lane with these.
void ScreenCheck::read_answers() {
    // The window may have had a moment that the archive did not see; what came next begins with it.
    const bool grows = reason().starts_with("The lanes are still answering");
    for (const AnswerLine& line : answer_lines()) {
        const std::string name = line.title.substr(std::min(line.title.find(' ') + 1, line.title.size()));
        std::string words;
        for (const char c : line.words)
            if (!std::isspace(static_cast<unsigned char>(c))) words += c;
        words = without_signs(std::move(words));
        const bool open = words.ends_with("…");
        if (open) words.resize(words.size() - std::string("…").size());
        if (words.empty() || words == "(nothing)" || words == "–") continue;
        const bool known = std::ranges::any_of(archive_.answers(), [&](const RunArchive::Answer& answer) {
            std::string its;
            for (const char c : answer.answer.text + answer.answer.failure)
                if (!std::isspace(static_cast<unsigned char>(c)) && c != '\n') its += c;
            return names(name, answer.spec) && (open || grows ? its.starts_with(words) : its == words);
        });
        if (!known)
            faults_.push_back(
                fmt::format("answers: '{}' is no answer of a lane '{}'", line.words, line.title));
    }
}

/// Reads cells of a heat map's matrix. Lanes differ from the end of the prompt on.
void ScreenCheck::read_map(int lane, const std::string& pane, const HeatData& data, int seed) {
    const HeadMatrix& matrix = data.focus();
    const int first = truth_->n_prompt() - 1, n_rows = row_ - first + 1;
    if (matrix.factor() != 1 || matrix.pyramid().empty() || n_rows < 1) return;
    const Plane& plane = matrix.pyramid().front();
    for (int i = 0; i < 12; ++i) {
        const int row = first + (i * 7 + seed) % n_rows, p = (i * 37 + seed * 11) % (row + 1);
        if (row >= plane.height || p >= plane.width) continue;
        if (row >= data.focus_read().rows) continue;  // drawn as not recorded until it is read
        const float value = plane.at(p, row);
        state(lane, pane, fmt::format("cell of step {} and position {}: {:.4g}", row, p, double(value)),
              [this, row, p, value](int known) {
                  const int then = holder(*truth_, known, row);
                  const LaneRecord* its = truth_->lane_record(row, then);
                  if (its == nullptr || value == kNotRecorded) return its == nullptr && value == kNotRecorded;
                  std::vector<float> values(to_index(row) + 1);
                  const int layer = app_.view.layer, head = app_.view.head,
                            g = truth_->layout(then).kv_head_from_head(layer, head);
                  const bool read = app_.view.mode == HeatMode::score
                                        ? truth_->score_row(then, row, g, values)
                                        : truth_->attention_row(then, row, layer, head, values);
                  if (!read || truth_->hidden(then, g, p, row)) return true;
                  if (std::isnan(value)) return !truth_->attended(then, g, p, row);
                  return truth_->attended(then, g, p, row) && values[to_index(p)] == value;
              });
    }
}

void ScreenCheck::read_maps() {
    if (shared_.items.contains("pane heatmap") || shared_.items.contains("pane compare"))
        read_map(app_.view.lane, "heatmap", app_.maps.lane, row_);
    const std::vector<int> lanes = app_.compared_lanes();
    for (std::size_t i = 0; i < lanes.size() && i < app_.maps.others.size(); ++i)
        read_map(lanes[i], "compare", app_.maps.others[i], row_ + 5);
    // Titles over the maps side by side.
    if (app_.view.arrangement == Arrangement::compare)
        for (const ScreenText& text : panes_["compare"])
            if (const auto title = match(text.text, "^(\\d+) ([a-z]\\S*)")) {
                const int lane = std::stoi((*title)[1]);
                if (statements_.contains(lane)) state_name(lane, "compare", text.text);
            }
}

/// A thumbnail's cell is the highest attention of a block of cells.
void ScreenCheck::read_atlas() {
    const std::vector<HeadMatrix>& atlas = app_.maps.lane.atlas();
    const int n_heads = truth_->run().config.n_heads, first = truth_->n_prompt() - 1;
    if (!app_.maps.complete || app_.view.atlas_measure != -1 || atlas.empty()) return;
    for (int i = 0; i < 6; ++i) {
        const auto at = static_cast<std::size_t>(i * 11 + row_) % atlas.size();
        const HeadMatrix& matrix = atlas[at];
        const int f = matrix.factor(), block = (first + f) / f;  // the first of decoded steps alone
        if (block * f > row_) return;
        const int rows = std::min(block * f + f, std::min(truth_->last_row(), app_.run.last_row()) + 1),
                  x = (i * 3 + 1) % (block + 1);
        const float value = matrix.pyramid().front().at(x, block);
        if (std::isnan(value) || value < 0) continue;
        state(app_.view.lane, "atlas",
              fmt::format("L{}.H{} block {} {}: {:.4g}", at / to_index(n_heads), at % to_index(n_heads),
                          block, x, double(value)),
              [this, at, f, block, rows, x, n_heads, value](int known) {
                  float most = 0;
                  for (int row = block * f; row < rows; ++row) {
                      const int then = holder(*truth_, known, row);
                      std::vector<float> values(to_index(row) + 1);
                      if (!truth_->attention_row(then, row, static_cast<int>(at) / n_heads,
                                                 static_cast<int>(at) % n_heads, values))
                          continue;
                      for (int p = x * f; p < std::min(x * f + f, row + 1); ++p)
                          most = std::max(most, values[to_index(p)]);
                  }
                  return most == value;
              });
    }
}

}  // namespace keyhole::testing
