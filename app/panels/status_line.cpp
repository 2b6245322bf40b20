#include "app/panels/status_line.h"

#include <string>

namespace keyhole {

void draw_status_line(const PanelContext& context) {
    const AppState& app = context.app;
    const EngineStatus& status = app.run.status;
    std::string text;
    ImU32 color = theme::colors().dim;
    float progress = -1;
    if (!app.run.live()) {
        text = "trace " + app.run.opened_file.filename().string();
    } else {
        switch (status.phase) {
            case EnginePhase::idle:
                text = app.run.has_steps()      ? "stopped, Space runs"
                       : status.message.empty() ? "starting"
                                                : "stopped";
                break;
            case EnginePhase::loading:
                text = "loading the model";
                if (status.progress > 0) progress = static_cast<float>(status.progress);
                break;
            case EnginePhase::prefill:
                text = "reading the prompt";
                progress = static_cast<float>(status.progress);
                break;
            case EnginePhase::running:
                text = "decoding";
                color = theme::colors().good;
                break;
            case EnginePhase::finished:
                text = "finished";
                break;
            case EnginePhase::failed:
                text = "stopped";
                color = theme::colors().fault;
                break;
        }
    }
    if (app.run.is_replaying()) {
        text = status.work;
        progress = static_cast<float>(status.progress);
    }
    const ScopedFont font(context.fonts.small);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float line = ImGui::GetFontSize();
    list.AddCircleFilled({at.x + line * 0.4f, at.y + line * 0.6f}, line * 0.28f, color);
    ImGui::SetCursorScreenPos({at.x + line, at.y});
    const auto part = [&](const std::string& words, ImU32 c) {
        colored_text(c, words);
        ImGui::SameLine(0, context.px(14));
    };
    part(text, theme::colors().text);
    if (progress >= 0 && progress < 1) {
        ImGui::ProgressBar(progress, {context.px(120), line}, "");
        ImGui::SameLine(0, context.px(14));
    }
    // Draws the right end first, so that messages know their room.
    std::string right;
    if (app.run.has_steps()) {
        const int n = app.run.n_decoded();
        right = fmt::format("prompt {} · decoded {}{} · {}", app.run.history.n_prompt(), n,
                            app.run.live() && status.steps_per_s > 0
                                ? fmt::format(" · {:.1f} steps/s", status.steps_per_s)
                                : "",
                            app.run.history.run().backend);
        if (app.run.last_row() + 1 > app.run.history.run().config.n_ctx)
            right += fmt::format(" · beyond the trained context of {}", app.run.history.run().config.n_ctx);
    }
    const float right_width = ImGui::CalcTextSize(right.c_str()).x;
    const float end = ImGui::GetWindowPos().x + ImGui::GetWindowWidth() - context.px(12);
    const float room = end - right_width - context.px(20) - ImGui::GetCursorScreenPos().x;
    if (app.jobs.getting()) {
        part("getting " + app.jobs.wanted_model, theme::colors().dim);
        ImGui::ProgressBar(static_cast<float>(app.jobs.get_job.progress()), {context.px(120), line}, "");
        ImGui::SameLine();
        if (ImGui::SmallButton("Cancel##model")) run(context, "model.cancel");
        mark_item(context, "status model.cancel");
        ImGui::SameLine();
    } else if (app.jobs.opening() || app.jobs.export_job.running()) {
        part(app.jobs.opening()  ? "opening"
             : app.jobs.saving() ? "saving"
                                 : "exporting",
             theme::colors().dim);
        const double done =
            app.jobs.opening() ? app.jobs.open_job.progress() : app.jobs.export_job.progress();
        ImGui::ProgressBar(static_cast<float>(done), {context.px(120), line}, "");
        ImGui::SameLine();
        if (ImGui::SmallButton("Cancel##file")) run(context, "export.cancel");
        ImGui::SameLine();
    } else {
        const bool fault =
            app.notice.text.empty() ? status.phase == EnginePhase::failed : app.notice.is_fault;
        const std::string message = app.glyphs.text(
            app.notice.text.empty() ? (app.run.live() ? status.message : std::string()) : app.notice.text);
        const std::string cut = fitted(message, room);
        part(cut, fault ? theme::colors().fault : theme::colors().dim);
        if (cut != message) {
            const ImVec2 min = ImGui::GetItemRectMin(), max = ImGui::GetItemRectMax();
            if (ImGui::IsMouseHoveringRect(min, max)) ImGui::SetTooltip("%s", message.c_str());
        }
    }
    const ImVec2 corner(end - right_width, at.y);
    list.AddText(corner, theme::colors().dim, right.c_str());
    if (!right.empty()) mark_area(context, "status run", corner, {end, at.y + line});
    if (!status.precision.empty() && ImGui::IsMouseHoveringRect(corner, {end, at.y + line}))
        show_tooltip(context, capitalised(status.precision));
}

}  // namespace keyhole
