#include "app/panels/doctor_panel.h"

#include "app/panels/wrapped_field.h"
#include "app/state/memory_use.h"
#include "engine/analysis/doctor.h"
#include "engine/policy/option_table.h"

#include <algorithm>
#include <limits>

namespace keyhole {

namespace {

void draw_findings(const PanelContext& context) {
    const AppState& app = context.app;
    const LaneRecord* record = app.record(app.view.lane);
    heading(context, fmt::format("Lane {} after step {}", app.view.lane, app.view.row),
            lane_ink(context, app.view.lane));
    if (record == nullptr) {
        dim_text(context, "not present at this step");
        return;
    }
    if (app.view.lane >= app.doctor.n_lanes()) return;
    const std::vector<Finding>& findings = app.doctor.of(app.view.lane).findings;
    if (!ImGui::BeginTable("findings", 3, ImGuiTableFlags_SizingFixedFit)) return;
    ImGui::TableSetupColumn("state", 0, context.px(58));
    ImGui::TableSetupColumn("name", 0, context.px(280));
    ImGui::TableSetupColumn("detail", ImGuiTableColumnFlags_WidthStretch);
    for (const Finding& finding : findings) {
        const bool broken = finding.state == Finding::State::broken,
                   good = finding.state == Finding::State::good;
        ImGui::TableNextColumn();
        colored_text(broken ? theme::colors().fault
                     : good ? theme::colors().good
                            : theme::colors().faint,
                     broken ? "BROKEN"
                     : good ? "holds"
                            : "–");
        ImGui::TableNextColumn();
        colored_text(broken ? theme::colors().fault : theme::colors().text, finding.name);
        ImGui::TableNextColumn();
        small_words(context, finding.detail);
    }
    ImGui::EndTable();
    small_words(context,
                "–: cannot be checked here. Only the tests check that keys have the right rotation, since "
                "records contain no keys.");
}

void draw_plan(DoctorPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    const ModelConfig& config = app.run.history.run().config;
    MemoryRequest& request = panel.request;
    heading(context, "Memory of K and V under other sharing schemes");
    ImGui::SetNextItemWidth(context.px(110));
    ImGui::InputInt("tokens", &request.context, 1024, 8192);
    mark_field(context, "plan tokens", "tokens");
    ImGui::SameLine();
    ImGui::SetNextItemWidth(context.px(90));
    ImGui::InputInt("sequences", &request.batch, 1, 8);
    mark_field(context, "plan sequences", "sequences");
    ImGui::SameLine();
    for (const int bytes : {2, 4}) {
        if (ImGui::RadioButton(bytes == 2 ? "16-bit" : "32-bit", request.bytes_per_value == bytes))
            request.bytes_per_value = bytes;
        mark_item(context, fmt::format("plan bytes {}", bytes));
        if (bytes == 2) ImGui::SameLine();
    }
    request.context = std::clamp(request.context, 1, 1 << 24);
    request.batch = std::clamp(request.batch, 1, 1 << 16);
    const LaneRecord* record = app.record(app.view.lane);
    const std::int64_t stored =
        record != nullptr && record->info->policy.evicts() && record->info->policy.stored < kMostTokens
            ? record->info->policy.stored
            : std::numeric_limits<std::int64_t>::max();
    const bool evicts = stored != std::numeric_limits<std::int64_t>::max();
    if (!ImGui::BeginTable("schemes", 4, ImGuiTableFlags_SizingStretchProp)) return;
    for (const char* title :
         {"", "KV heads", "every token", evicts ? "with this budget" : "the lane keeps all"}) {
        ImGui::TableNextColumn();
        dim_text(context, title);
    }
    for (const MemoryScheme& scheme :
         memory_schemes(config.n_layers, config.n_heads, config.head_dim,
                        app.layout(app.view.lane).n_kv_heads(), request, stored)) {
        ImGui::TableNextColumn();
        colored_text(scheme.name == "this model" ? theme::colors().accent : theme::colors().text,
                     scheme.name);
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(fmt::format("{}", scheme.n_kv_heads).c_str());
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(bytes_text(scheme.full_bytes).c_str());
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(evicts ? bytes_text(scheme.budget_bytes).c_str() : "–");
    }
    ImGui::EndTable();
    small_words(context,
                "2 × KV heads × head width × tokens × sequences × bytes. Sharing without training damages "
                "the model.");
}

/// Draws where the memory of this process goes.
void draw_memory_of_sharing(const PanelContext& context) {
    heading(context, "Memory of this window");
    if (!ImGui::BeginTable("memory", 3, ImGuiTableFlags_SizingStretchProp)) return;
    for (const char* title : {"", "now", "at most"}) {
        ImGui::TableNextColumn();
        dim_text(context, title);
    }
    const auto line = [&](const char* name, std::int64_t bytes, std::string_view limit,
                          std::string_view help) {
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(name);
        if (!help.empty()) tooltip(context, help);
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(bytes_text(bytes).c_str());
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(std::string(limit).c_str());
    };
    std::int64_t sum = 0;
    bool any_on_device = false;
    for (const MemoryPart& part : memory_parts(context.app)) {
        if (!part.on_device) sum += part.bytes;
        any_on_device = any_on_device || part.on_device;
        line(fmt::format("{}{}", part.name, part.on_device ? ", on the device" : "").c_str(), part.bytes,
             part.limit_bytes > 0 ? bytes_text(part.limit_bytes) : "–", part.help);
    }
    line(any_on_device ? "all but on the device" : "all", sum, "–", "");
    ImGui::EndTable();
}

}  // namespace

static std::string verdict_text(const DoctorWatch::Verdict& verdict) {
    if (verdict.n_hold + verdict.n_unknown == 0) return "nothing is checked yet";
    const std::string passes =
        fmt::format("{} {}", verdict.n_hold, verdict.n_hold == 1 ? "check passes" : "checks pass");
    if (verdict.n_unknown == 0) return passes;
    return fmt::format("{}, {} {} not apply", passes, verdict.n_unknown,
                       verdict.n_unknown == 1 ? "does" : "do");
}

void draw_doctor_line(const PanelContext& context) {
    const AppState& app = context.app;
    const DoctorWatch::Verdict verdict = app.doctor.verdict();
    const bool broken = verdict.n_broken > 0;
    const ImVec2 corner = ImGui::GetCursorScreenPos();
    heading(context, "Doctor");
    const std::string text = broken ? fmt::format("BROKEN in lane {}: {}", verdict.lane, verdict.fault.name)
                                    : verdict_text(verdict);
    const bool pressed = [&] {
        const ScopedFont font(context.fonts.small);
        const ScopedColor color(ImGuiCol_Text, broken ? theme::colors().fault : theme::colors().good);
        ImGui::SameLine();
        float width = ImGui::GetContentRegionAvail().x;
        std::string label = fitted(text, width);
        if (app.for_projector() && label != text) {  // nobody hovers there, so all of it is said below
            ImGui::NewLine();
            width = ImGui::GetContentRegionAvail().x;
            WrappedText lines;
            lines.set(text, width, drawn_width);
            label = lines.shown();
        }
        return ImGui::Selectable((label + "##doctor").c_str(), false, 0, {width, 0});
    }();
    mark_item(context, "doctor line");
    tooltip(context,
            (broken ? fmt::format("lane {}: {}\n\n", verdict.lane, verdict.fault.detail) : "") +
                verdict.each +
                fmt::format("\n\nOver all lanes after step {}. Click for each lane (F5).", app.view.row));
    if (broken && app.for_projector()) small_words(context, verdict.fault.detail);
    mark_area(context, "doctor verdict", corner,
              {ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x, ImGui::GetItemRectMax().y});
    if (!pressed) return;
    if (broken) run(context, fmt::format("lane.focus {}", verdict.lane));
    if (app.dialog != Dialog::doctor) run(context, "doctor");
}

void draw(DoctorPanel& panel, const PanelContext& context) {
    if (!context.app.run.has_steps()) {
        dim_text(context, "waits for the prompt");
        return;
    }
    draw_findings(context);
    ImGui::Separator();
    draw_plan(panel, context);
    ImGui::Separator();
    draw_memory_of_sharing(context);
}

}  // namespace keyhole
