#include "app/panels/first_words.h"

#include "app/panels/notice_strip.h"

#include <array>

namespace keyhole {

std::span<const SeenPart> parts_on_show() {
    static constexpr std::array<SeenPart, 11> kParts = {{
        {"The idea",
         "A language model reads and writes a text token by token; a token is a word or a piece of one. To "
         "choose the next, each of its attention heads looks back at the tokens before, and therefore stores "
         "two vectors of every token: the KV cache. It grows with the text until memory or time is short. A "
         "policy keeps it small: it evicts (drops) tokens, and no head can attend to an evicted token again. "
         "Here you see what each policy keeps, and what the model would say otherwise."},
        {"Answers",
         "are what each lane says by itself after the prompt. ✓ and ✗: right and wrong, where the right "
         "answer is known. Framed: another word than lane 0's. Why? shows what the lane had evicted when it "
         "answered. With new settings a lane answers again, from the prompt on, also while a slider is "
         "dragged."},
        {"Lanes",
         "run side by side on the same text. Each has its own cache and its own policy. Lane 0 keeps "
         "everything and is the reference. You can change a lane while it runs; the change takes effect with "
         "the next step."},
        {"Atlas",
         "shows every layer and head of the focused lane at once. The list over it chooses what colours "
         "them. Click a head to focus it."},
        {"Heat map",
         "each row is a step, which consumes one token; columns are the positions attended to. Hatched: the "
         "token was evicted before. A pixel that covers several cells shows their maximum, so no large value "
         "is lost."},
        {"Scores",
         "decide which tokens stay: the policy evicts the token with the lowest score. A cross marks an "
         "eviction."},
        {"Text",
         "is coloured by how many heads still keep the token. Struck through: evicted everywhere. "
         "Underlined: the lane had to consume this token and would have chosen another one."},
        {"Time",
         "moves through the run. Ticks are evictions, lines the KL of every lane to lane 0, triangles your "
         "changes."},
        {"Limits", "attention is no explanation, and one prompt says little about quality."},
        {"Screen readers",
         "cannot read this window. “keyhole decode” and “keyhole replay FILE” print the same numbers as "
         "text, and every export contains them; Ctrl+Shift+C copies the command line of the view."},
        {"More", "F1 opens the manual, and Help has all of this again."},
    }};
    return kParts;
}

void draw_first_words(bool& open, const PanelContext& context) {
    if (!open) return;
    const NoticeStrip strip(context, "##first words");
    const float button = ImGui::CalcTextSize("Close").x + 2 * ImGui::GetStyle().FramePadding.x;
    const ImVec2 top = ImGui::GetCursorScreenPos();
    const float room = ImGui::GetContentRegionAvail().x - button - context.px(12);
    {
        const ScopedTextWrap wrap(ImGui::GetCursorPosX() + room);
        ImGui::TextUnformatted(parts_on_show().front().words.data());
    }
    const ImVec2 end(top.x, ImGui::GetCursorScreenPos().y);
    ImGui::SetCursorScreenPos({top.x + room + context.px(12), top.y});
    if (ImGui::Button("Close")) open = false;
    mark_item(context, "first words close");
    tooltip(context, "Help, What you see, has this text and more.");
    if (end.y > ImGui::GetCursorScreenPos().y) {
        ImGui::SetCursorScreenPos({end.x, end.y - 1});
        ImGui::Dummy({1, 1});
    }
}

}  // namespace keyhole
