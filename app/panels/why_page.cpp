#include "app/panels/why_page.h"

#include "engine/analysis/run_rows.h"
#include "engine/analysis/score_range.h"
#include "engine/base/counted.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace keyhole {

namespace {

void wrapped(const std::string& text, ImU32 color = theme::colors().text) {
    const ScopedColor ink(ImGuiCol_Text, color);
    ImGui::TextWrapped("%s", text.c_str());
}

/// Draws score (line) and threshold (orange) of one head over the steps, on its own logarithmic scale.
void draw_spark(ImDrawList& list, const TokenLifetime::Head& head, ImVec2 min, ImVec2 max) {
    const ScoreRange range = score_range(head.threshold, {head.score});
    const std::size_t n = head.score.size();
    const auto draw_line = [&](const std::vector<float>& values, ImU32 color) {
        const auto at = [&](std::size_t i) {
            const float x = min.x + 2 +
                            (max.x - min.x - 4) * static_cast<float>(i) /
                                static_cast<float>(std::max<std::size_t>(n - 1, 1));
            return ImVec2(x, max.y - 2 - (max.y - min.y - 4) * 0.95f * range.part(values[i]));
        };
        for (std::size_t i = 0; i + 1 < n; ++i)
            if (values[i] >= 0 && values[i + 1] >= 0) list.AddLine(at(i), at(i + 1), color, 1.3f);
        if (n > 0 && values[0] >= 0 && (n == 1 || !(values[1] >= 0))) list.AddCircleFilled(at(0), 2, color);
    };
    draw_line(head.threshold, theme::colors().warm);
    draw_line(head.score, theme::colors().accent);
}

/// Draws the token's score as a bar, against the threshold in the middle: right of it a token stays.
void draw_score_bar(const PanelContext& context, ImDrawList& list, const Competition& at, ImVec2 min,
                    ImVec2 max) {
    if (!at.competes || !(at.threshold > 0)) return;
    const float part = std::clamp(at.score / at.threshold / 2, 0.0f, 1.0f), middle = (min.x + max.x) / 2;
    const float top = max.y - context.px(6);
    list.AddRectFilled({min.x, top}, max, theme::colors().inset);
    list.AddRectFilled({min.x, top + 1}, {min.x + std::max((max.x - min.x) * part, 2.0f), max.y},
                       part < 0.5f ? theme::colors().fault : theme::colors().good);
    list.AddLine({middle, top - 1}, {middle, max.y}, theme::colors().warm, 1.5f);
}

/// Draws a cell a query head: kept, or the step of its eviction, its curves, and its score when it went.
void draw_heads(const PanelContext& context, const WhyPage& page) {
    const TokenLifetime& lifetime = page.lifetime;
    const AppState& app = context.app;
    const KvLayout& layout = app.layout(app.view.lane);
    const int n_heads = layout.n_heads();
    // All layers if they fit, else those around the focused one.
    const int most = std::max(1, static_cast<int>(context.px(230) / context.px(34)));
    const int n_layers = std::min(layout.n_layers(), most);
    const int first = std::clamp(app.view.layer - n_layers / 2, 0, layout.n_layers() - n_layers);
    const float label = context.px(26), high = context.px(34);
    const float wide = std::floor((ImGui::GetContentRegionAvail().x - label) / static_cast<float>(n_heads));
    if (wide < 4) return;
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ScopedFont font(context.fonts.small);
    for (int l = first; l < first + n_layers; ++l) {
        const float top = origin.y + high * static_cast<float>(l - first);
        list.AddText({origin.x, top + high / 4},
                     l == app.view.layer ? theme::colors().text : theme::colors().faint,
                     fmt::format("L{}", l).c_str());
        for (int h = 0; h < n_heads; ++h) {
            const TokenLifetime::Head& head = lifetime.heads[to_index(layout.kv_head_from_head(l, h))];
            const ImVec2 min(origin.x + label + wide * static_cast<float>(h), top),
                max(min.x + wide - 2, top + high - 2);
            const bool gone = head.evicted_at >= 0 && head.evicted_at <= app.view.row;
            list.AddRectFilled(min, max, gone ? theme::colors().gone : theme::colors().held, 2);
            draw_spark(list, head, min, {max.x, max.y - context.px(6)});
            if (const auto& at = page.competitions[to_index(l * n_heads + h)])
                draw_score_bar(context, list, *at, min, max);
            const std::string text = head.evicted_at < 0 ? "kept" : fmt::format("× {}", head.evicted_at);
            if (const ImVec2 words = ImGui::CalcTextSize(text.c_str()); words.x + 3 < wide) {
                list.AddRectFilled(min, {min.x + words.x + 4, min.y + words.y}, theme::colors().inset, 2);
                list.AddText({min.x + 2, min.y}, gone ? theme::colors().dim : theme::colors().text,
                             text.c_str());
            }
            if (l == app.view.layer && h == app.view.head)
                list.AddRect(min, max, theme::colors().warm, 2, 0, 2);
            if (ImGui::IsWindowHovered() && ImGui::IsMouseHoveringRect(min, max)) {
                const std::string story =
                    eviction_story(app.run.history, lifetime.lane, l, h, lifetime.position);
                show_tooltip(context, story.empty() ? fmt::format("L{}.H{} keeps it", l, h) : story);
                if (ImGui::IsMouseClicked(0)) run(context, fmt::format("goto {} {}", l, h));
            }
        }
    }
    ImGui::Dummy({0, high * static_cast<float>(n_layers) + context.px(2)});
    small_words(
        context,
        n_layers < layout.n_layers()
            ? fmt::format("Layers {} to {} of {}. Bar: score over threshold; the line in the middle is the "
                          "threshold. Above it both, step by step.",
                          first, first + n_layers - 1, layout.n_layers())
            : "Bar: score over threshold, when the token went; the line in the middle is the threshold. "
              "Above it score (blue) and threshold (orange), step by step.");
}

/// Draws a bar a record: attention to the token.
void draw_bars(const PanelContext& context, std::span<const float> values, float largest, ImU32 color) {
    const ImVec2 min = ImGui::GetCursorScreenPos(), size(ImGui::GetContentRegionAvail().x, context.px(46));
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.AddRectFilled(min, {min.x + size.x, min.y + size.y}, theme::colors().inset, 3);
    const float count = static_cast<float>(std::max<std::size_t>(values.size(), 1));
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!(values[i] > 0)) continue;
        const float x = min.x + size.x * (static_cast<float>(i) + 0.5f) / count;
        list.AddLine({x, min.y + size.y - 1},
                     {x, min.y + size.y - 1 - (size.y - 4) * values[i] / std::max(largest, 1e-9f)}, color,
                     std::max(1.0f, size.x / count - 1));
    }
    ImGui::Dummy(size);
    const ScopedFont font(context.fonts.small);
    list.AddText({min.x + context.px(3), min.y + 1}, theme::colors().dim,
                 fmt::format("{:.2f} %", double(largest) * 100).c_str());
    const RunHistory& history = context.app.run.history;
    colored_text(theme::colors().dim, fmt::format("0 %. Left: step {}. Right: step {}.",
                                                  history.steps().front()->row, history.last_row()));
}

/// Draws the attention that evicted token got since. values: one a record. who: subject and verb of the
/// sentence.
void draw_attention_since(const PanelContext& context, std::span<const float> values, const std::string& who,
                          ImU32 color) {
    double sum = 0;
    float largest = 0;
    int n = 0, at = -1;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) continue;
        sum += double(values[i]);
        ++n;
        if (values[i] >= largest) largest = values[i], at = context.app.run.history.steps()[i]->row;
    }
    if (n == 0) {
        dim_text(context, "It was just evicted. Run decodes on; later steps show the attention to it.");
        return;
    }
    wrapped(fmt::format(
        "{} {:.2f} % of the attention of the heads that evicted it (mean of the {} at which it was "
        "evicted and both lanes read the same token); the maximum is at step {}: {:.2f} %.",
        who, sum / n * 100, counted(n, "step"), at, double(largest) * 100));
    draw_bars(context, values, largest, color);
}

/// Draws the attention that lane 0 gave to the token after its eviction.
void draw_full_attention(const PanelContext& context, const TokenLifetime& lifetime) {
    if (!lifetime.full_known) {
        dim_text(context,
                 "The attention of a full cache to this token needs a full lane 0 beside this lane.");
        return;
    }
    draw_attention_since(context, lifetime.full_attention,
                         "Lane 0, which keeps everything, has since given it", lane_ink(context, 0));
}

/// Draws the same for the lane's own shadow, if it has one: full attention over the lane's own text and
/// queries.
void draw_shadow_attention(const PanelContext& context, const TokenLifetime& lifetime) {
    const AppState& app = context.app;
    const LaneRecord* record = app.run.history.lane_record(app.run.last_row(), lifetime.lane);
    if (record == nullptr || !record->info->policy.shadow || !app.run.live()) return;
    if (app.jobs.shadow_job.running()) {
        ImGui::ProgressBar(static_cast<float>(app.jobs.shadow_job.progress()), {context.px(220), 0});
        ImGui::SameLine();
        action_button(context, "why.shadow", "Cancel");
        return;
    }
    const auto known = app.jobs.shadow_job.result();
    if (known == nullptr || known->lane_id != record->info->id || known->position != lifetime.position ||
        known->history != app.run.history.generation() || known->last_row > app.run.last_row()) {
        action_button(context, "why.shadow", "Compute full attention to this token");
        return;
    }
    std::vector<float> values;
    for (const auto& step : app.run.history.steps()) {
        if (step->row > known->last_row) break;
        values.push_back(known->by_row[to_index(step->row)]);
    }
    draw_attention_since(
        context, values,
        fmt::format("Up to step {}, the lane's shadow (full attention on its own text) has given it",
                    known->last_row),
        lane_ink(context, app.view.lane));
    if (known->last_row < app.run.last_row())
        action_button(context, "why.shadow", "Update to the newest step");
}

/// Returns what the engine has computed about the token, as if the lane had kept it; null: nothing.
const Counterfactual* known_about(const AppState& app, const TokenLifetime& lifetime) {
    const auto& back = app.run.status.counterfactual;
    if (!app.run.live() || back == nullptr) return nullptr;
    const LaneRecord* record = app.run.history.lane_record(app.run.last_row(), lifetime.lane);
    const bool same = record != nullptr && back->lane_id == record->info->id &&
                      TokenSpan{back->position, back->position + back->n_tokens - 1}.holds(lifetime.position);
    return same ? back.get() : nullptr;
}

/// Says what the lane answers as it is, and what a copy answers that kept the tokens.
void draw_answers(const PanelContext& context, const TokenLifetime& lifetime) {
    const Counterfactual* known = known_about(context.app, lifetime);
    if (known == nullptr) return;
    const Counterfactual& back = *known;
    const LaneAnswer &now = back.answer_as_is, &with = back.answer_with;
    const std::string& failure = now.failure.empty() ? with.failure : now.failure;
    if (!failure.empty()) return wrapped(failure, theme::colors().fault);
    if (!now.complete || !with.complete) return;
    const auto quoted = [](const LaneAnswer& answer) {
        const std::size_t first = answer.text.find_first_not_of(' ');
        return fmt::format("“{}{}”", first == std::string::npos ? "" : answer.text.substr(first),
                           answer.cut ? " …" : "");
    };
    const std::string kept =
        back.n_tokens == 1 ? "this token" : fmt::format("these {} tokens", back.n_tokens);
    const bool to_prompt = context.app.run.history.n_prompt() - 1 == back.row;
    const LaneOnShow& shown = context.app.shown().at(context.app.view.lane);
    const std::string said = fmt::format(
        "{} {} {}",
        shown.old_settings ? fmt::format("With its old settings, {}, the lane", format_lane_spec(shown.spec))
                           : "The lane",
        to_prompt ? "answers" : "goes on with", quoted(now));
    wrapped(now.text == with.text ? fmt::format("{}, with and without {}.", said, kept)
                                  : fmt::format("{}. Had it kept {}, it would {} {}.", said, kept,
                                                to_prompt ? "answer" : "go on with", quoted(with)),
            now.text == with.text ? theme::colors().text : theme::colors().good);
    dim_text(context,
             "Neither copy evicts more while it answers, so these evictions are the only difference.");
}

/// Returns the step of decoding after which the lane's next word is farthest from lane 0's; -1: none.
int row_of_largest_kl(const AppState& app, int lane) {
    int found = -1;
    float most = 0;
    for (const auto& step : app.run.history.steps()) {
        const LaneRecord* record = app.run.history.lane_record(step->row, lane);
        if (record == nullptr || !record->kl || !(*record->kl > most)) continue;
        most = *record->kl;
        found = step->row;
    }
    return found;
}

/// Draws what a temporary copy of the lane would say with the evicted token back in its cache.
void draw_counterfactual(const PanelContext& context, const TokenLifetime& lifetime) {
    const AppState& app = context.app;
    if (!app.run.live()) {
        dim_text(
            context,
            "An opened trace cannot compute what the lane would say with this token kept; that needs a run.");
        return;
    }
    const int shown = std::max(app.view.row, app.run.history.n_prompt() - 1), picked = app.view.pick->row;
    if (app.run.is_replaying()) {
        ImGui::ProgressBar(static_cast<float>(app.run.status.progress), {context.px(220), 0});
        ImGui::SameLine();
        action_button(context, "run.stop", "Cancel");
    } else {
        ImGui::AlignTextToFramePadding();
        ImGui::TextUnformatted("What if the lane had kept this token?");
        const auto ask = [&](int row, bool watched = false) {
            const std::string label =
                fmt::format("{} step {}", watched ? "All watched words, after" : "After", row);
            next_to(label.c_str(), context.px(8));
            if (ImGui::Button(label.c_str()))
                run(context, fmt::format("why.kept {}{}", watched ? "watched " : "", row));
            mark_item(context, watched ? "why.kept watched" : row == shown ? "why.kept" : "why.kept picked");
            action_tooltip(context, "why.kept");
        };
        const int telling = row_of_largest_kl(app, lifetime.lane);
        if (telling >= 0) {
            const std::string label = fmt::format("After step {}, where the lanes differ most", telling);
            next_to(label.c_str(), context.px(8));
            if (ImGui::Button(label.c_str())) run(context, fmt::format("why.kept {}", telling));
            mark_item(context, "why.kept most");
            tooltip(context, "The step with the largest KL to lane 0.");
        }
        ask(shown);
        if (picked != shown && picked >= app.run.history.n_prompt() - 1) ask(picked);
        if (app.view.watched && app.view.watched->size() > 1) ask(shown, true);
    }
    const Counterfactual* back = known_about(app, lifetime);
    if (back == nullptr) return;
    wrapped(fmt::format(
        "After step {}: a copy of the lane with the same evictions, except that it kept {} in the {} KV "
        "head{} that had evicted {}: KL {} nats.",
        back->row,
        back->n_tokens == 1 ? "this token"
                            : fmt::format("the {} tokens from {} on", back->n_tokens, back->position),
        back->kv_heads.size(), back->kv_heads.size() == 1 ? "" : "s", back->n_tokens == 1 ? "it" : "any",
        number_text(back->kl)));
    constexpr double kLeast = 0.00005;  // nats; less shows in none of the columns
    if (double(back->kl) < kLeast) {
        const int telling = row_of_largest_kl(app, lifetime.lane);
        wrapped(fmt::format("So the next word of this step is the same with and without.{}",
                            telling < 0 || telling == back->row
                                ? ""
                                : fmt::format(" The lanes differ most after step {}: the button above asks "
                                              "there.",
                                              telling)));
        return;
    }
    if (!ImGui::BeginTable("back", 3, ImGuiTableFlags_SizingStretchSame)) return;
    for (const char* title : {"this lane", "with it kept", "lane 0"}) {
        ImGui::TableNextColumn();
        dim_text(context, title);
    }
    const LaneRecord* then = app.run.history.lane_record(back->row, lifetime.lane);
    const LaneRecord* full = app.run.history.lane_record(back->row, 0);
    for (std::size_t k = 0; k < 5; ++k) {
        const std::vector<TopToken>* lists[] = {then == nullptr ? nullptr : &then->top, &back->with,
                                                full == nullptr ? nullptr : &full->top};
        for (const std::vector<TopToken>* top : lists) {
            ImGui::TableNextColumn();
            if (top == nullptr || k >= top->size()) continue;
            ImGui::TextUnformatted(fmt::format("{:5.1f} %  {}", std::exp(double((*top)[k].log_prob)) * 100,
                                               visible(token_words(app, (*top)[k].id)))
                                       .c_str());
        }
    }
    ImGui::EndTable();
}

}  // namespace

namespace {

void update_competitions(WhyPage& page, const AppState& app, int lane) {
    const KvLayout& layout = app.run.history.layout(lane);
    if (page.row == app.view.row && !page.competitions.empty()) return;
    page.row = app.view.row;
    page.competitions.clear();
    for (int l = 0; l < layout.n_layers(); ++l)
        for (int h = 0; h < layout.n_heads(); ++h) {
            const int gone = page.lifetime.heads[to_index(layout.kv_head_from_head(l, h))].evicted_at;
            const int row = gone >= 0 && gone <= app.view.row ? gone : app.view.row;
            page.competitions.push_back(
                competition(app.run.history, lane, l, h, page.lifetime.position, row));
        }
}

}  // namespace

void draw(WhyPage& page, const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.run.has_steps() || !app.view.pick) {
        dim_text(context, "Pick a token: a cell of a heat map, or a word of the text.");
        return;
    }
    if (!shows_lane(context, "why", app.view.lane)) return;
    const LaneOnShow& shown = app.shown().at(app.view.lane);
    const int lane = *shown.known, position = app.view.pick->position;
    if (page.generation != app.run.history.generation() || page.last_row != app.run.last_row() ||
        page.lifetime.lane != lane || page.lifetime.position != position || page.lifetime.heads.empty()) {
        page.lifetime = token_lifetime(app.run.history, lane, position);
        page.generation = app.run.history.generation();
        page.last_row = app.run.last_row();
        page.competitions.clear();
    }
    const TokenLifetime& lifetime = page.lifetime;
    update_competitions(page, app, lane);
    const int n_kv = app.run.history.layout(lane).n_kv_heads();
    heading(context,
            fmt::format("“{}” at position {} in lane {}", visible(token_words(app, lane, position)), position,
                        shown.title),
            lane_ink(context, app.view.lane));
    if (!shown.mark.empty()) wrapped(capitalised(shown.mark) + ". " + shown.note, theme::colors().warm);
    // The same token in the other lanes, one click away.
    for (int other = 0; app.run.lane_editor.n_lanes() > 1 && other < app.run.lane_editor.n_lanes(); ++other) {
        if (app.run.history_lane(other) && other != app.view.lane) {
            const std::string& title = app.shown().at(other).title;
            next_to(title.c_str(), context.px(8));
            const ScopedColor ink(ImGuiCol_Text, lane_ink(context, other));
            if (ImGui::SmallButton(title.c_str())) run(context, fmt::format("lane.focus {}", other));
            mark_item(context, fmt::format("why lane {}", other));
        }
    }
    std::string summary = position < app.run.history.n_prompt()
                              ? fmt::format("Read in the prompt, step {}. ", position)
                              : fmt::format("Generated, consumed by step {}. ", position);
    const int n = lifetime.n_holding(app.view.row);
    summary += fmt::format("After step {}, {} of {} KV heads {} it. ", app.view.row, n, n_kv,
                           n == 1 ? "keeps" : "keep");
    wrapped(summary + evictions_text(lifetime));
    draw_answers(context, lifetime);
    draw_heads(context, page);
    const std::string story = eviction_story(app.run.history, lane, app.view.layer, app.view.head, position);
    wrapped(story.empty()
                ? fmt::format("The focused head, L{}.H{}, still keeps it.", app.view.layer, app.view.head)
                : story,
            story.empty() ? theme::colors().good : theme::colors().text);
    ImGui::Separator();
    draw_full_attention(context, lifetime);
    draw_shadow_attention(context, lifetime);
    ImGui::Separator();
    draw_counterfactual(context, lifetime);
}

}  // namespace keyhole
