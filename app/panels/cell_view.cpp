#include "app/panels/cell_view.h"

#include "app/view/model_words.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_state.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

namespace {

void row(const PanelContext& context, const char* name, const std::string& value, const char* help,
         ImU32 color = theme::colors().text) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    colored_text(theme::colors().dim, name);
    tooltip(context, help);
    ImGui::TableNextColumn();
    const std::string cut = fitted(value, ImGui::GetContentRegionAvail().x);
    colored_text(color, cut);
    if (cut != value) tooltip(context, value + "\n" + help);
}

void draw_attention(const PanelContext& context, int lane, Pick cell) {
    const AppState& app = context.app;
    constexpr const char* kHelp =
        "Attention probability of the token at this step in the focused head, and its rank among all tokens.";
    const TokenPresence is = presence(app.run.history, lane, app.focused_kv_head(), cell.position, cell.row);
    std::vector<float> values(to_index(cell.row) + 1);
    if (!is_recorded(app.run.history, lane, cell.row))
        return row(context, "attention", "not recorded: no step of the lane", kHelp, theme::colors().dim);
    if (is == TokenPresence::evicted)
        return row(context, "attention", "none: the token was evicted", kHelp, theme::colors().dim);
    if (is == TokenPresence::hidden)
        return row(context, "attention", "none: hidden at this step", kHelp, theme::colors().dim);
    if (!attention_values(app.run.history, lane, cell.row, app.view.layer, app.view.head, values))
        return row(context, "attention", "not recorded", kHelp, theme::colors().dim);
    const float value = values[to_index(cell.position)];
    if (!std::isfinite(value)) return row(context, "attention", "NaN", kHelp, theme::colors().fault);
    int above = 0, n = 0;
    for (const float other : values) {
        if (std::isnan(other) || other == kHiddenValue) continue;
        ++n;
        above += other > value ? 1 : 0;
    }
    row(context, "attention", fmt::format("{}   rank {} of {}", half_text(double(value)), above + 1, n),
        kHelp);
    row(context, "ln p",
        value > 0 ? fmt::format("{:.3f}", std::log(double(value))) : "too small to be recorded",
        "The logit minus a constant of the step and head: ln p = logit - ln(sum of exp(logits)). Differences "
        "between tokens of one step equal those of their logits.");
}

/// Draws what belongs to the step and to no token: the learned sink's share, the experts that ran.
void draw_model_parts(const PanelContext& context, int lane, Pick cell) {
    const AppState& app = context.app;
    const float share = learned_sink_share(app.run.history, lane, cell.row, app.view.layer, app.view.head);
    if (!std::isnan(share))
        row(context, "sink", fmt::format("{:.3f}   no token", double(share)),
            "What the head's learned sink takes of this step's attention: neither kept nor lost, and no "
            "policy sums it.");
    const LaneRecord* record =
        app.run.history.lane_record(cell.row, lane_of_row(app.run.history, lane, cell.row));
    if (record == nullptr) return;
    const ModelConfig& config = app.run.history.run().config;
    if (const std::string words = expert_words(config, *record, app.view.layer); !words.empty())
        row(context, "experts", words,
            ("Experts of the focused layer that ran for the step's token, the router's choice, best "
             "first.\n" +
             all_expert_words(config, *record))
                .c_str());
}

void draw_score(const PanelContext& context, int lane, Pick cell) {
    const AppState& app = context.app;
    constexpr const char* kScore =
        "The score by which the head keeps tokens, after this step, pooled over the query heads that share "
        "the KV head.";
    constexpr const char* kRank =
        "Rank among the tokens that compete: all but pinned tokens and the protected first and newest ones.";
    constexpr const char* kThreshold =
        "Lowest score of a competing token that was kept at this step; margin = score - threshold.";
    const auto standing =
        competition(app.run.history, lane, app.view.layer, app.view.head, cell.position, cell.row);
    if (!standing) {
        row(context, "score",
            cell.row < app.run.history.n_prompt() - 1 ? "none: within the prompt" : "not recorded", kScore,
            theme::colors().dim);
        return;
    }
    row(context, "score", number_text(double(standing->score)), kScore);
    if (!standing->competes) {
        row(context, "rank", standing->why_not, kRank, theme::colors().dim);
    } else {
        row(context, "rank", fmt::format("{} of {} that compete", standing->rank, standing->n), kRank);
    }
    if (std::isnan(standing->threshold)) {
        row(context, "threshold", "none: nothing had to be evicted", kThreshold, theme::colors().dim);
        return;
    }
    const bool below = standing->margin < 0;
    row(context, "threshold", number_text(double(standing->threshold)), kThreshold,
        below ? theme::colors().warm : theme::colors().text);
    if (standing->competes)
        row(context, "margin", fmt::format("{}{}", below ? "" : "+", number_text(double(standing->margin))),
            kThreshold, below ? theme::colors().warm : theme::colors().text);
}

void draw_history(const PanelContext& context, int lane, Pick cell) {
    const AppState& app = context.app;
    const int g = app.focused_kv_head(), n_kv = app.run.history.layout(lane).n_kv_heads();
    const TokenPresence is = presence(app.run.history, lane, g, cell.position, cell.row);
    row(context, "cache", presence_text(app.run.history, lane, g, cell.position, cell.row),
        "Stored: in the cache after the step's eviction. Attended: visible to the step's query.",
        is == TokenPresence::hidden || is == TokenPresence::leaving ? theme::colors().warm
                                                                    : theme::colors().text);
    row(context, "read",
        cell.position < app.run.history.n_prompt() ? fmt::format("step {}, in the prompt", cell.position)
                                                   : fmt::format("step {}, decoded", cell.position),
        "The step that consumed the token.");
    const std::int32_t evicted = app.run.history.evicted_at(lane, g, cell.position);
    constexpr const char* kEvicted =
        "In the focused head: the last step that could see the token, and what evicted it.";
    if (evicted < 0)
        row(context, "evicted", "never: still kept", kEvicted, theme::colors().good);
    else
        row(context, "evicted",
            fmt::format("after step {} “{}”", evicted, visible(token_words(app, lane, evicted))), kEvicted,
            theme::colors().warm);
    if (evicted >= 0) {
        const std::string cause = eviction_cause(app.run.history, lane, g, cell.position);
        row(context, "by", cause.starts_with("by ") ? cause.substr(3) : cause,
            "The policy, a command by hand, or a change of the lane's settings.", theme::colors().warm);
    }
    int holders = 0, pins = 0;
    for (int i = 0; i < n_kv; ++i) {
        holders += app.run.history.stored(lane, i, cell.position, app.view.row) ? 1 : 0;
        pins += app.run.history.pinned(lane, i, cell.position, app.view.row) ? 1 : 0;
    }
    row(context, "kept by",
        fmt::format("{} of {} KV heads{}", holders, n_kv,
                    pins > 0 ? fmt::format(", pinned in {}", pins) : ""),
        fmt::format("KV heads of all layers that store the token after step {}.", app.view.row).c_str());
}

/// Draws facts about several tokens together: the picked ones, and the watched ones.
void draw_together(const PanelContext& context) {
    const AppState& app = context.app;
    const auto line = [&](const char* name, std::vector<int> positions) {
        std::erase_if(positions, [&](int p) { return p > app.view.row; });
        if (positions.size() < 2) return;
        const auto sum = attention_sum(app.run.history, *app.shown_lane(), app.view.row, app.view.layer,
                                       app.view.head, positions);
        std::string text = fmt::format("{} {}: ", positions.size(), name);
        if (!sum)
            text += "not recorded";
        else if (sum->n_seen == 0)
            text += "attention 0, all evicted";
        else
            text += fmt::format("attention {:.3g} in total", sum->sum);
        dim_text(context, text);
        tooltip(context, fmt::format("Sum of the attention that step {} of lane {} gave to them in L{}.H{}; "
                                     "it saw {} of them. Shift+click picks several tokens, W watches words.",
                                     app.view.row, app.view.lane, app.view.layer, app.view.head,
                                     sum ? sum->n_seen : 0));
    };
    line("picked", app.view.curve_positions);
    if (!app.view.watched) return;
    std::vector<int> watched;
    for (int p = app.view.watched->first; p <= app.view.watched->last; ++p) watched.push_back(p);
    line("watched", watched);
}

/// Draws the commands on the picked token: evict, pin, unpin, fork, rewind.
void draw_actions(const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.view.pick) return;
    const float gap = context.px(3);
    const ScopedFont font(context.fonts.small);
    action_button(context, "why", "Why?");
    if (!app.run.live()) return;
    ImGui::SameLine(0, gap);
    const bool pinned = app.run.history.pinned(*app.shown_lane(), app.focused_kv_head(),
                                               app.view.pick->position, app.run.last_row());
    action_button(context, "evict", "Evict");
    ImGui::SameLine(0, gap);
    action_button(context, "evict.all", "everywhere");
    ImGui::SameLine(0, gap);
    pinned ? action_button(context, "unpin", "Unpin", true) : action_button(context, "pin", "Pin");
    ImGui::SameLine(0, gap);
    if (ImGui::Button("More…")) context.shared.open_token_menu = true;
    mark_item(context, "token menu");
}

}  // namespace

void draw_cell_view(const PanelContext& context) {
    const AppState& app = context.app;
    const std::optional<Pick> shown = context.shared.hovered ? context.shared.hovered : app.view.pick;
    heading(context, context.shared.hovered || !app.view.pick ? "Cell" : "Picked cell");
    draw_lane_mark(context, app.view.lane);
    if (!shows_lane(context, "cell", app.view.lane)) return;
    if (!shown || shown->row > app.run.last_row() || shown->position > shown->row) {
        small_words(context, "Point at a cell of the heat map or a word of the text; a click picks it.");
        draw_together(context);
        return;
    }
    const int lane = *app.shown_lane();
    const Pick cell = *shown;
    if (ImGui::BeginTable("cell", 2, ImGuiTableFlags_SizingFixedFit)) {
        ImGui::TableSetupColumn("name", 0, context.px(76));
        ImGui::TableSetupColumn("value", ImGuiTableColumnFlags_WidthStretch);
        row(context, "query",
            fmt::format("“{}”  step {}", visible(token_words(app, lane, cell.row)), cell.row),
            "The row: the consumed token, whose query attends.");
        row(context, "key",
            fmt::format("“{}”  position {}", visible(token_words(app, lane, cell.position)), cell.position),
            "The column: the token that is attended to.");
        draw_attention(context, lane, cell);
        draw_model_parts(context, lane, cell);
        draw_score(context, lane, cell);
        draw_history(context, lane, cell);
        ImGui::EndTable();
    }
    draw_together(context);
    draw_actions(context);
}

void draw_token_menu(const PanelContext& context) {
    const AppState& app = context.app;
    if (std::exchange(context.shared.open_token_menu, false) && app.run.has_steps() && app.view.pick)
        ImGui::OpenPopup("token menu");
    const ScopedPopup popup("token menu");
    if (!popup.open() || !app.view.pick || app.view.pick->row > app.run.last_row()) return;
    const Pick cell = *app.view.pick;
    heading(context, fmt::format("lane {}", app.view.lane), lane_ink(context, app.view.lane));
    ImGui::SameLine();
    ImGui::TextUnformatted(fmt::format("“{}”  position {}",
                                       visible(token_words(app, app.text_lane(), cell.position)),
                                       cell.position)
                               .c_str());
    if (!app.run.live()) return dim_text(context, "an opened trace cannot be changed");
    if (app.view.row < app.run.last_row())
        dim_text(context,
                 fmt::format("commands by hand apply after the newest step, {}", app.run.last_row()));
    ImGui::Separator();
    const std::string here = fmt::format("L{}.H{}", app.view.layer, app.view.head),
                      layer = fmt::format("layer {}", app.view.layer);
    const auto item = [&](const std::string& text, std::string_view command) {
        const UserAction* known = find_action(command.substr(0, command.find(' ')));
        const std::string keys = known == nullptr || command.find(' ') != std::string_view::npos
                                     ? ""
                                     : shortcut_text(known->shortcut);
        if (ImGui::MenuItem(text.c_str(), keys.c_str())) run(context, command);
        mark_item(context, "menu " + std::string(command));
        if (known != nullptr) tooltip(context, known->help);
    };
    item("Why did this token go?", "why");
    ImGui::Separator();
    for (const char* verb : {"evict", "pin", "unpin"}) {
        const std::string v(verb), name = v == "evict" ? "Evict" : v == "pin" ? "Pin" : "Unpin";
        item(fmt::format("{} here ({})", name, here), v);
        item(fmt::format("{} in {}", name, layer), v + " layer");
        item(fmt::format("{} everywhere", name), v + ".all");
        ImGui::Separator();
    }
    item("Watch the picked tokens", "watch");
    if (cell.position >= app.run.history.n_prompt()) item("Replace the text from here…", "token.edit");
    item(fmt::format("Rewind to step {}", cell.row), fmt::format("rewind {}", cell.row));
    if (app.run.settings_differ_at(cell.row))
        item(fmt::format("Rewind to step {}, keep settings", cell.row),
             fmt::format("rewind {} keep", cell.row));
    item(fmt::format("Fork lane {} at step {}", app.view.lane, app.view.row), "fork.here");
    item(fmt::format("Show step {}", cell.row), fmt::format("time.show {}", cell.row));
}

}  // namespace keyhole
