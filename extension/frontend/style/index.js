import "uplot/dist/uPlot.min.css";
import "./card.css";
import "./promote.css";
import "./jobs.css";
