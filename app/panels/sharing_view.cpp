#include "app/panels/sharing_view.h"

#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/model/kv_default.h"
#include "engine/policy/lane_spec.h"

#include <algorithm>
#include <array>

namespace keyhole {

std::vector<KvSharing> sharing_choices(const ModelConfig& config) {
    using Kind = KvSharing::Kind;
    const KvShape own = kv_shape(config);
    std::vector<KvSharing> choices = {{}};
    const auto offer = [&](const KvSharing& sharing) {
        if (kv_shape(sharing, config) != own && check_sharing(sharing, config).empty())
            choices.push_back(sharing);
    };
    for (int g = own.n_heads - 1; g > 1; --g) offer({Kind::gqa, 0, g});
    if (own.n_layers == config.n_layers) offer({Kind::mqa});
    for (int m = own.n_layers; m >= 1; --m)
        for (const int g : {own.n_heads, 1})
            if (m < config.n_layers && config.n_layers % m == 0 &&
                std::none_of(choices.begin(), choices.end(), [&](const KvSharing& known) {
                    return kv_shape(known, config) == KvShape{m, g};
                }))
                offer({Kind::mlkv, m, g});
    return choices;
}

namespace {

/// Returns one of four colours in turn, so that neighbouring groups differ.
ImU32 group_color(const KvLayout& layout, int g) {
    const KvHead& kv = layout.kv_head(g);
    const int n_in_layer = layout.last_read(kv.owner_layer) - layout.first_read(kv.owner_layer);
    int owners_below = 0;
    for (int l = 0; l < kv.owner_layer; ++l) owners_below += layout.owns(l) ? 1 : 0;
    const int shade = (kv.index + owners_below * std::max(1, n_in_layer / 2 + 1)) % 4;
    constexpr std::array kShades = {theme::rgb(86, 140, 200), theme::rgb(222, 160, 70),
                                    theme::rgb(112, 176, 150), theme::rgb(170, 124, 176)};
    return kShades[to_index(shade)];
}

/// Returns the width of the diagram beside the choice: half of the room at most.
float groups_width(const PanelContext& context, const ModelConfig& config, float room) {
    const float n_heads = static_cast<float>(config.n_heads);
    return std::floor(std::clamp(room / 2 / n_heads, context.px(3), context.px(15))) * n_heads;
}

/// Draws layers as rows, from below, and query heads as columns. A cell has the colour of the KV head that
/// it reads: filled in its owner layer, framed in layers that borrow it.
void draw_groups(const PanelContext& context, const KvLayout& layout, int layer, int head, float width) {
    const float cell = width / static_cast<float>(layout.n_heads());
    const float height =
        std::clamp(context.px(72) / static_cast<float>(layout.n_layers()), context.px(3), context.px(11));
    const ImVec2 min = ImGui::GetCursorScreenPos();
    const ImVec2 size(cell * static_cast<float>(layout.n_heads()),
                      height * static_cast<float>(layout.n_layers()));
    ImGui::InvisibleButton("sharing groups", size);
    mark_plot(context, "sharing groups");
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 mouse = ImGui::GetMousePos();
    const bool hovered = ImGui::IsItemHovered();
    for (int l = 0; l < layout.n_layers(); ++l)
        for (int h = 0; h < layout.n_heads(); ++h) {
            const float x = min.x + cell * static_cast<float>(h),
                        y = min.y + height * static_cast<float>(layout.n_layers() - 1 - l);
            const int g = layout.kv_head_from_head(l, h);
            // Cells of one KV head touch; between KV heads there is a gap.
            const bool ends = h + 1 == layout.n_heads() || layout.kv_head_from_head(l, h + 1) != g;
            const bool top = l + 1 == layout.n_layers() || layout.owns(l + 1);
            const ImVec2 a(x, y + (top ? 1.0f : 0.0f)), b(x + cell - (ends ? context.px(2) : 0), y + height);
            const ImU32 color = group_color(layout, g);
            list.AddRectFilled(a, b, layout.owns(l) ? color : theme::faded(color, 0.42f));
            if (l == layer && h == head) list.AddRect(a, b, theme::colors().text);
            if (!hovered || mouse.x < x || mouse.x >= x + cell || mouse.y < y || mouse.y >= y + height)
                continue;
            const KvHead& kv = layout.kv_head(g);
            tooltip(
                context,
                fmt::format("Layer {}, query head {} reads {}{}.\n{} it.", l, h, kv_head_text(layout, g),
                            layout.owns(l) ? "" : ", borrowed from another layer",
                            kv.readers.size() == 1 ? "No other query head reads"
                                                   : fmt::format("{} query heads read", kv.readers.size())));
        }
}

std::string choice_text(const KvSharing& sharing, const ModelConfig& config) {
    return sharing.kind == KvSharing::Kind::own ? fmt::format("own ({})", kv_name(config))
                                                : format_kv_sharing(sharing);
}

/// Returns the type in which the edited lane stores K and V. f32 in traces that do not name it.
KvType stored_type(const AppState& app, const PolicyEditor& edit) {
    if (app.run.live())
        if (const auto model = app.run.model()) return kv_type_for(edit.policy.kv_dtype, *model);
    const LaneRecord* record = app.record(edit.lane);
    const KvType type = record != nullptr ? record->info->kv_dtype : edit.policy.kv_dtype;
    return type == KvType::automatic ? KvType::f32 : type;
}

void draw_choice(KvSharing& sharing, PolicyEditor& edit, const ModelConfig& config, float width) {
    const PanelContext& context = edit.context;
    ImGui::SetNextItemWidth(width);
    ScopedCombo combo("##kv", choice_text(sharing, config).c_str());
    if (!combo.open()) return mark_item(context, "kv");
    const KvType type = stored_type(context.app, edit);
    for (KvSharing choice : sharing_choices(config)) {
        choice.merge = sharing.merge;
        choice.compensate = sharing.compensate;
        const std::string text = choice_text(choice, config);
        ModelConfig shared = config;
        shared.n_kv_layers = kv_shape(choice, config).n_layers;
        shared.n_kv_heads = kv_shape(choice, config).n_heads;
        const std::string line =
            fmt::format("{}   {} per token", text, bytes_text(kv_bytes_per_token(shared, type)));
        if (combo.item(line.c_str(), choice == sharing) && choice != sharing) {
            sharing = choice;
            edit.committed = true;
        }
        mark_item(context, "kv " + text);
    }
}

template <class Value>
void draw_pair(PolicyEditor& edit, const char* option, Value& value,
               const std::array<std::pair<const char*, Value>, 2>& two) {
    edit.label(option);
    const float gap = edit.context.px(3), width = (edit.room() - gap) / 2;
    for (std::size_t i = 0; i < two.size(); ++i) {
        if (i > 0) ImGui::SameLine(0, gap);
        const bool lit = value == two[i].second;
        if (lit_button(fmt::format("{}##{}", two[i].first, option).c_str(), lit, width) && !lit) {
            value = two[i].second;
            edit.committed = true;
        }
        mark_item(edit.context, fmt::format("{} {}", option, two[i].first));
        tooltip(edit.context, option_tooltip(option, {}));
    }
}

/// Draws how many bytes of K and V a token takes.
void draw_bytes(const PolicyEditor& edit, const LaneRecord& record, const KvLayout& layout) {
    const double per_head = static_cast<double>(record.use.stored_tokens) / layout.n_kv_heads();
    const std::string measured =
        per_head > 0 ? fmt::format(" Measured: {:.0f} bytes stored for each token that a KV head stores.",
                                   static_cast<double>(record.use.stored_bytes) / per_head)
                     : "";
    small_words(edit.context, bytes_text(record.info->token_bytes) + " per token", theme::colors().text);
    tooltip(edit.context,
            fmt::format("{} bytes of K and V, by the equation 2 * KV heads * bytes of head_dim numbers.{}",
                        record.info->token_bytes, measured));
}

}  // namespace

void draw_sharing(KvSharing& sharing, PolicyEditor& edit) {
    const PanelContext& context = edit.context;
    const AppState& app = context.app;
    if (!app.run.has_steps()) return;
    const ModelConfig& config = app.run.history.run().config;
    edit.word(lane_option("kv"), context.px(4000));
    const LaneRecord* record = app.record(edit.lane);
    const std::optional<int> lane = app.run.history_lane(edit.lane);
    const bool is_known = record != nullptr && lane.has_value();
    const float groups = is_known ? groups_width(context, config, edit.room()) : 0, gap = context.px(8);
    const float left = edit.room() - (is_known ? groups + gap : 0);
    const ImVec2 top = ImGui::GetCursorScreenPos();
    float bottom = 0;
    {
        ImGui::BeginGroup();
        const ScopedTextWrap wrap(ImGui::GetCursorPosX() + left);
        draw_choice(sharing, edit, config, left);
        if (is_known) draw_bytes(edit, *record, app.run.history.layout(*lane));
        ImGui::EndGroup();
        bottom = ImGui::GetItemRectMax().y;
    }
    if (is_known) {
        ImGui::SetCursorScreenPos({top.x + left + gap, top.y});
        draw_groups(context, app.run.history.layout(*lane), app.view.layer, app.view.head, groups);
        bottom = std::max(bottom, ImGui::GetItemRectMax().y);
    }
    ImGui::SetCursorScreenPos({top.x, bottom + ImGui::GetStyle().ItemSpacing.y});
    if (sharing.kind == KvSharing::Kind::own) return;
    if (kv_shape(sharing, config).n_layers < kv_shape(config).n_layers)
        draw_pair<KvMerge>(edit, "merge", sharing.merge,
                           {{{"uniform", KvMerge::uniform}, {"released", KvMerge::released}}});
    draw_pair<bool>(edit, "compensate", sharing.compensate, {{{"off", false}, {"on", true}}});
}

}  // namespace keyhole
