#include "app/state/paper_cards.h"

#include "app/papers/figure.h"

namespace keyhole {

std::vector<PaperCard> paper_cards() {
    std::vector<PaperCard> cards;
    for (const Figure& figure : figures())
        cards.push_back({.name = std::string(figure.name),
                         .title = std::string(figure.title),
                         .finding = std::string(figure.finding),
                         .paper_values = std::string(figure.paper_values),
                         .seen_on = std::string(figure.seen_on),
                         .command = command_of(figure),
                         .minutes = figure.minutes,
                         .makeable = figure.from != Figure::From::elsewhere});
    return cards;
}

}  // namespace keyhole
